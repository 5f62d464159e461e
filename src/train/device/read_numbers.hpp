#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

namespace accel::train {

/// The numbers of a list that lie on one device.
struct NumbersOfDevice {
  at::Tensor values;                ///< The values, float64 [n], on that device.
  std::vector<std::size_t> places;  ///< The index in the list of each of the values.
};

/// Groups scalar tensors by device, in the order in which the devices first occur.
[[nodiscard]] std::vector<NumbersOfDevice> by_device(std::span<const at::Tensor> numbers);

/// Returns the values of scalar tensors of any devices and dtypes. The host waits for each device once, not
/// once for each number.
[[nodiscard]] std::vector<double> read_numbers(std::span<const at::Tensor> numbers);

}  // namespace accel::train
