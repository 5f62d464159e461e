#pragma once

#include <c10/core/Stream.h>

#include "train/device/storage_device.hpp"

namespace accel::train {

/// Storage in pinned memory of the host, for a GPU. Copies run on two streams of their own, one for each
/// direction, so that they overlap with each other, with computation and with collectives.
///
/// It uses c10's generic device interface, because a worker on CPU ranks has no CUDA loaded.
class HostStorage : public StorageDevice {
 public:
  /// `compute` must be of a device type that has streams, and must be the current device.
  explicit HostStorage(at::Device compute);

  [[nodiscard]] bool is_offloaded() const override { return true; }
  using StorageDevice::empty;
  using StorageDevice::fetch;
  at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) override;
  std::unique_ptr<Copy> fetch(const at::Tensor& to, const at::Tensor& from,
                              const Conversion& convert) override;
  std::unique_ptr<Copy> store(const at::Tensor& to, const at::Tensor& from) override;
  void synchronize() override;

 private:
  std::unique_ptr<Copy> run_on(const c10::Stream& lane, const std::function<void()>& copy) const;

  c10::Stream to_device_;
  c10::Stream to_host_;
};

}  // namespace accel::train
