#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace accel::train {

/// Memory for unsharded parameters and gradients on the CPU, kept for reuse when it is freed: equal layers
/// take turns in two or three blocks, and no page is faulted in twice. On CUDA the caching allocator does
/// this already and is used directly.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  /// With `poison` all memory is filled with NaN when it is handed out and, on the CPU, when it is given
  /// back, so that a read of parameters that are not gathered shows up. Slow; for tests.
  static std::shared_ptr<BufferPool> make(at::Device device, bool poison = false);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  /// Uninitialised memory. It goes back to the pool when the DataPtr is destroyed, which may be after the
  /// pool's owner has released the pool.
  at::DataPtr allocate(std::size_t bytes);
  /// An uninitialised one-dimensional tensor of `numel` elements in such memory.
  at::Tensor empty(std::int64_t numel, at::ScalarType dtype);

  /// Bytes of all blocks, in use or not. 0 on CUDA, where the caching allocator owns the blocks.
  [[nodiscard]] std::size_t held_bytes();
  [[nodiscard]] at::Device device() const { return device_; }

 private:
  struct Block;
  BufferPool(at::Device device, bool poison);
  at::DataPtr allocate_clean(std::size_t bytes);
  static void give_back(void* block);

  at::Device device_;
  bool poison_;
  std::mutex mutex_;
  std::size_t held_bytes_ = 0;
  std::map<std::size_t, std::vector<void*>> free_;
};

/// A tensor of `sizes` on `storage` from element `offset`, made below autograd: it shares the storage with
/// other tensors, but is not a view of any of them and has a version counter of its own.
at::Tensor tensor_on(const c10::Storage& storage, std::int64_t offset, at::IntArrayRef sizes,
                     at::ScalarType dtype);

}  // namespace accel::train
