#include "train/device/read_numbers.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/files/flight_record.hpp"

namespace accel::train {

std::vector<NumbersOfDevice> by_device(std::span<const at::Tensor> numbers) {
  const at::NoGradGuard no_grad;
  std::vector<NumbersOfDevice> result;
  std::vector<at::Device> devices;
  for (const at::Tensor& number : numbers) {
    if (std::find(devices.begin(), devices.end(), number.device()) == devices.end())
      devices.push_back(number.device());
  }
  for (const at::Device device : devices) {
    NumbersOfDevice& there = result.emplace_back();
    std::vector<at::Tensor> values;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i].device() != device) continue;
      values.push_back(numbers[i].to(at::kDouble));
      there.places.push_back(i);
    }
    there.values = at::stack(values);
  }
  return result;
}

std::vector<double> read_numbers(std::span<const at::Tensor> numbers) {
  std::vector<double> result(numbers.size());
  for (const NumbersOfDevice& there : by_device(numbers)) {
    const flight::HostSync sync(!there.values.is_cpu());
    const at::Tensor on_host = there.values.cpu();
    for (std::size_t i = 0; i < there.places.size(); ++i)
      result[there.places[i]] = on_host.const_data_ptr<double>()[i];
  }
  return result;
}

}  // namespace accel::train
