#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace accel::train {

/// A copy between the device that computes and the storage, perhaps still under way. Until one of join() and
/// wait() has been called both its tensors must stay as they are, memory and values.
class Copy {
 public:
  Copy() = default;
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  virtual ~Copy() = default;

  /// What the current stream is given from now on happens after the copy. The host does not wait.
  virtual void join() {}
  /// Returns when the copy is done: before the host reads what was copied, or changes where it came from.
  virtual void wait() {}
  /// Calls `work`, what it gives to the device, a collective for example, happens after the copy, and not
  /// after what else the current stream has to do.
  virtual void then(const std::function<void()>& work) { work(); }
};

/// Where tensors lie while nothing is computed with them: shards, their gradients, the optimizer's state,
/// and what units that run again keep for backward. The device that computes, or the memory of the host.
///
/// Copies begin when what the current stream has been given so far is done; those in one direction follow
/// each other. Used by one thread at a time.
class StorageDevice {
 public:
  /// On `compute` itself: nothing needs to be copied, and copies are ordinary ones.
  static std::shared_ptr<StorageDevice> beside(at::Device compute);
  /// In pinned memory of the host. Where `compute` is the CPU that is where everything is: beside(compute).
  static std::shared_ptr<StorageDevice> on_host(at::Device compute);

  StorageDevice(const StorageDevice&) = delete;
  StorageDevice& operator=(const StorageDevice&) = delete;
  virtual ~StorageDevice() = default;

  [[nodiscard]] at::Device compute() const { return compute_; }
  /// Whether tensors of this storage must be copied to the computing device before they are used there.
  [[nodiscard]] virtual bool is_offloaded() const = 0;
  /// An uninitialised tensor here. No memory left is an Error of kind kFailure.
  virtual at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) = 0;
  at::Tensor empty(std::int64_t numel, at::ScalarType dtype) { return empty({numel}, {1}, dtype); }

  /// From here to `to` on the computing device, and the other way; converts if the dtypes differ.
  virtual std::unique_ptr<Copy> fetch(const at::Tensor& to, const at::Tensor& from) = 0;
  virtual std::unique_ptr<Copy> store(const at::Tensor& to, const at::Tensor& from) = 0;
  /// Returns when all copies are done.
  virtual void synchronize() = 0;

 protected:
  explicit StorageDevice(at::Device compute) : compute_(compute) {}

 private:
  at::Device compute_;
};

}  // namespace accel::train
