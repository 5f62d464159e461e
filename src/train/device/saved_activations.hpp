#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "train/device/storage_device.hpp"

namespace accel::train {

/// The saved activations of one call of a unit, offloaded between forward and backward.
///
/// They come back with their values, sizes and, if no memory lies between their elements, strides. An
/// expanded tensor is stored once and expanded again. A tensor that is not on the storage's computing device,
/// or is not a plain strided tensor, stays where it is.
class OffloadedActivations {
 public:
  /// Starts to copy the tensors. They must not change before release().
  OffloadedActivations(std::shared_ptr<StorageDevice> storage, std::span<const at::Tensor> tensors);
  OffloadedActivations(const OffloadedActivations&) = delete;
  OffloadedActivations& operator=(const OffloadedActivations&) = delete;
  ~OffloadedActivations();

  /// Orders later work of the current stream after the copies, and releases the tensors on the computing
  /// device.
  void release();
  /// Starts to copy the tensors back, unless that has begun.
  void fetch();
  /// Returns the tensors without autograd history, in their original order. Can be called once. Starts to
  /// fetch them if fetch() has not, and orders later work of the current stream after that copy. A tensor
  /// that stayed where it is and was changed in place since is an Error of kind kUsage.
  std::vector<at::Tensor> take();
  [[nodiscard]] bool is_taken() const { return taken_; }

 private:
  struct Entry {
    /// The first index of the same tensor in the list: this entry's or a lower one.
    std::size_t same_as = 0;
    at::Tensor original;       ///< It is undefined after release(), unless the tensor stays where it is.
    std::int64_t version = 0;  ///< The tensor's version when it was saved.
    std::vector<std::int64_t> sizes;
    at::Tensor stored;  ///< The copy in the storage.
    at::Tensor back;    ///< The copy on the computing device, between fetch() and take().
    std::unique_ptr<Copy> copy;
  };

  std::shared_ptr<StorageDevice> storage_;
  std::vector<Entry> entries_;
  bool fetched_ = false;
  bool taken_ = false;
};

/// The offloaded activations of all calls of one unit. Backward takes them in the reverse order of the calls.
class UnitActivations {
 public:
  explicit UnitActivations(std::shared_ptr<StorageDevice> storage) : storage_(std::move(storage)) {}

  /// Starts to offload the activations of a call.
  std::shared_ptr<OffloadedActivations> offload(std::span<const at::Tensor> tensors);
  /// Starts to fetch the activations of the last call whose backward has not run yet.
  void fetch_next();

 private:
  std::shared_ptr<StorageDevice> storage_;
  std::vector<std::weak_ptr<OffloadedActivations>> calls_;
};

}  // namespace accel::train
