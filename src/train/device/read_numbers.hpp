#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

namespace accel::train {

/// Some numbers of a list, which lie on one device.
struct NumbersOfDevice {
  at::Tensor values;                ///< float64 [n], there.
  std::vector<std::size_t> places;  ///< Where in the list each of them stands.
};

/// Puts scalar tensors of any devices together by devices, in the order in which these first come.
[[nodiscard]] std::vector<NumbersOfDevice> by_device(std::span<const at::Tensor> numbers);

/// The values of scalar tensors of any devices and dtypes. The host waits for each device once, however many
/// numbers lie there, and not as often as it asks for one.
[[nodiscard]] std::vector<double> read_numbers(std::span<const at::Tensor> numbers);

}  // namespace accel::train
