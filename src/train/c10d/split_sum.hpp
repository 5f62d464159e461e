#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <utility>
#include <vector>

#include "train/c10d/group.hpp"

namespace accel::train {

/// A number of this rank as a sum of two parts. The host does not know the part that the device computes
/// until it has waited for the device.
struct SplitNumber {
  SplitNumber(double value) : on_host(value) {}
  /// The value of a tensor without dimensions. One on the CPU is read here.
  SplitNumber(const at::Tensor& scalar);
  SplitNumber(double value, at::Tensor scalar) : on_host(value), on_device(std::move(scalar)) {}

  double on_host = 0;
  at::Tensor on_device;  ///< A float64 scalar; undefined if the host knows the whole number.
};

/// Returns the sums of the ranks' numbers, each in its place. The parts of the host travel to the device, not
/// those of the device to the host, so that the host waits for the device once, at the end. Collective.
std::vector<double> sum_over_ranks(std::span<const SplitNumber> own, Group& group);

}  // namespace accel::train
