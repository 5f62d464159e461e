#include "train/fsdp/buffers/buffer_pool.hpp"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <cstring>
#include <utility>

namespace accel::train {

struct BufferPool::Block {
  std::shared_ptr<BufferPool> pool;
  void* data;
  std::size_t bytes;
};

namespace {

// A byte that makes a NaN of every floating type.
constexpr int kPoison = 0xFF;

}  // namespace

BufferPool::BufferPool(at::Device device, bool poison) : device_(device), poison_(poison) {}

std::shared_ptr<BufferPool> BufferPool::make(at::Device device, bool poison) {
  return std::shared_ptr<BufferPool>(new BufferPool(device, poison));
}

BufferPool::~BufferPool() {
  c10::Allocator* allocator = c10::GetAllocator(device_.type());
  for (const auto& [bytes, blocks] : free_) {
    for (void* data : blocks) allocator->raw_deallocate(data);
  }
}

at::DataPtr BufferPool::allocate(std::size_t bytes) {
  at::DataPtr data = allocate_clean(bytes);
  if (poison_ && bytes > 0) {
    // The fill runs on the current stream, after all work that may still use the memory.
    at::for_blob(data.get(), {static_cast<std::int64_t>(bytes)})
        .options(at::TensorOptions().dtype(at::kByte).device(device_))
        .target_device(device_)
        .make_tensor()
        .fill_(kPoison);
  }
  return data;
}

at::DataPtr BufferPool::allocate_clean(std::size_t bytes) {
  c10::Allocator* allocator = c10::GetAllocator(device_.type());
  if (!device_.is_cpu()) return allocator->allocate(bytes);
  void* data = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& blocks = free_[bytes];
    if (!blocks.empty()) {
      data = blocks.back();
      blocks.pop_back();
    } else {
      held_bytes_ += bytes;
    }
  }
  if (data == nullptr) data = allocator->raw_allocate(bytes);
  return {data, new Block{shared_from_this(), data, bytes}, &BufferPool::give_back, device_};
}

std::size_t BufferPool::held_bytes() {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

void BufferPool::give_back(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  if (block->pool->poison_) std::memset(block->data, kPoison, block->bytes);
  const std::lock_guard lock(block->pool->mutex_);
  block->pool->free_[block->bytes].push_back(block->data);
}

at::Tensor BufferPool::empty(std::int64_t numel, at::ScalarType dtype) {
  const std::size_t bytes = static_cast<std::size_t>(numel) * c10::elementSize(dtype);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocate(bytes), nullptr,
                             /*resizable=*/false);
  return tensor_on(storage, 0, {numel}, dtype);
}

at::Tensor tensor_on(const c10::Storage& storage, std::int64_t offset, at::IntArrayRef sizes,
                     at::ScalarType dtype) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype).device(storage.device()));
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  tensor.set_(storage, offset, sizes);
  return tensor;
}

}  // namespace accel::train
