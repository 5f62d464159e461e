#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>

namespace accel::train {

/// Where the generators of random numbers stand: that of the CPU, and that of one GPU.
class RandomState {
 public:
  /// As they stand now. `device`: the GPU whose generator counts, or the CPU.
  static RandomState now(at::Device device);

  void restore() const;

  /// As torch's Generator.get_state(), in the host's memory; that of the GPU undefined if none counts.
  [[nodiscard]] const at::Tensor& cpu() const { return cpu_; }
  [[nodiscard]] const at::Tensor& gpu() const { return gpu_; }

 private:
  at::Tensor cpu_;
  std::optional<at::Device> gpu_device_;
  at::Tensor gpu_;
};

/// Sets the generators to `state`, and at its end back to where they stood.
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
