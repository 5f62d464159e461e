#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace accel::train {

/// The name of a device's random state in a checkpoint, that of torch's device type: "cpu", "cuda", "xpu".
std::string random_state_name(at::Device device);

/// The states of the random number generators of the CPU and of one GPU.
class RandomState {
 public:
  /// The present states. `device` is the GPU whose generator is included, or the CPU.
  static RandomState now(at::Device device);

  /// The states that cpu() and gpu() returned in an earlier process. `gpu` may be undefined.
  static RandomState from(at::Tensor cpu, at::Device device, at::Tensor gpu);

  void restore() const;

  /// What torch's Generator.get_state() returns, in host memory. gpu() is undefined if no GPU is included,
  /// and gpu_device() is nullopt then.
  [[nodiscard]] const at::Tensor& cpu() const { return cpu_; }
  [[nodiscard]] const at::Tensor& gpu() const { return gpu_; }
  [[nodiscard]] std::optional<at::Device> gpu_device() const { return gpu_device_; }

 private:
  at::Tensor cpu_;
  std::optional<at::Device> gpu_device_;
  at::Tensor gpu_;
};

/// Sets the generators to `state` for as long as this lives, and then back.
class RandomStateGuard {
 public:
  RandomStateGuard(const RandomState& state, at::Device device);
  RandomStateGuard(const RandomStateGuard&) = delete;
  RandomStateGuard& operator=(const RandomStateGuard&) = delete;
  ~RandomStateGuard();

 private:
  RandomState before_;
};

}  // namespace accel::train
