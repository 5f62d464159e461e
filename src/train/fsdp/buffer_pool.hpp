#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace accel::train {

/// Memory for unsharded parameters and gradients, handed out again instead of returned: equal layers take
/// turns in two or three blocks, and no page is faulted in twice. On CUDA the caching allocator does this
/// already and is used as it is.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  /// `poison`: all memory is full of NaN when it is handed out and, on the CPU, when it has been given back,
  /// so that whoever reads what was not gathered, or is not gathered any more, sees it. For tests; takes
  /// time.
  static std::shared_ptr<BufferPool> make(at::Device device, bool poison = false);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  /// Uninitialised memory; it goes back to the pool when the DataPtr dies, which may be after the pool's
  /// owner has released it.
  at::DataPtr allocate(std::size_t bytes);
  /// An uninitialised one-dimensional tensor of `numel` elements in such memory.
  at::Tensor empty(std::int64_t numel, at::ScalarType dtype);

  /// Bytes of all blocks there are, in use or not; on CUDA 0, as they are the caching allocator's.
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

/// A tensor of `sizes` on `storage` from element `offset`, made below autograd: it shares the storage, but no
/// view relation and no version counter with other tensors on it.
at::Tensor tensor_on(const c10::Storage& storage, std::int64_t offset, at::IntArrayRef sizes,
                     at::ScalarType dtype);

}  // namespace accel::train
