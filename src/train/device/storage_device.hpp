#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace accel::train {

/// A copy between the computing device and the storage, which may still be in progress. Until
/// wait_on_stream() or synchronize() has been called, the memory and the values of both tensors must not
/// change.
class Copy {
 public:
  Copy() = default;
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  virtual ~Copy() = default;

  /// Orders later work of the current stream after the copy. Does not block the host.
  virtual void wait_on_stream() {}
  /// Blocks the host until the copy is done. Needed before the host reads the target or changes the source.
  virtual void synchronize() {}
  /// Calls `work`. What `work` gives to the device, for example a collective, is ordered after the copy and
  /// not after other work of the current stream.
  virtual void then(const std::function<void()>& work) { work(); }
};

/// The place of tensors while nothing is computed with them: shards, their gradients, the optimizer's state,
/// and the saved activations of activation checkpointing. It is the computing device or the memory of the
/// host.
///
/// A copy begins when the work that the current stream has been given so far is done. Copies in one direction
/// run in order. Used by one thread at a time.
class StorageDevice {
 public:
  /// Returns storage on `compute` itself. Nothing is offloaded, and copies are ordinary ones.
  static std::shared_ptr<StorageDevice> beside(at::Device compute);
  /// Returns storage in pinned memory of the host. If `compute` is the CPU, this is beside(compute), because
  /// its tensors are in the host's memory already.
  static std::shared_ptr<StorageDevice> on_host(at::Device compute);

  StorageDevice(const StorageDevice&) = delete;
  StorageDevice& operator=(const StorageDevice&) = delete;
  virtual ~StorageDevice() = default;

  [[nodiscard]] at::Device compute() const { return compute_; }
  /// Whether tensors of this storage must be copied to the computing device before they are used there.
  [[nodiscard]] virtual bool is_offloaded() const = 0;
  /// Returns an uninitialised tensor in this storage. Lack of memory is an Error of kind kFailure.
  virtual at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) = 0;
  at::Tensor empty(std::int64_t numel, at::ScalarType dtype) { return empty({numel}, {1}, dtype); }

  /// Sets `to` to the values of `from` in another dtype; both are on the computing device.
  using Conversion = std::function<void(const at::Tensor& to, const at::Tensor& from)>;

  /// Starts to copy `from`, which is in this storage, to `to` on the computing device. If the dtypes differ
  /// it converts there, by `convert` unless that is empty. `convert` is called once, at the latest when the
  /// copy is waited for.
  virtual std::unique_ptr<Copy> fetch(const at::Tensor& to, const at::Tensor& from,
                                      const Conversion& convert) = 0;
  std::unique_ptr<Copy> fetch(const at::Tensor& to, const at::Tensor& from) { return fetch(to, from, {}); }
  /// Starts to copy `from`, which is on the computing device, to `to` in this storage. Converts if the dtypes
  /// differ.
  virtual std::unique_ptr<Copy> store(const at::Tensor& to, const at::Tensor& from) = 0;
  /// Blocks the host until all copies are done.
  virtual void synchronize() = 0;

 protected:
  explicit StorageDevice(at::Device compute) : compute_(compute) {}

 private:
  at::Device compute_;
};

}  // namespace accel::train
