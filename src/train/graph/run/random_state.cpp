#include "train/graph/run/random_state.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <utility>

#include "base/log.hpp"

namespace accel::train {
namespace {

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

std::string random_state_name(at::Device device) {
  return c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

RandomState RandomState::now(at::Device device) {
  RandomState state;
  state.cpu_ = state_of(at::detail::getDefaultCPUGenerator());
  if (!device.is_cpu()) {
    state.gpu_device_ = device;
    state.gpu_ = state_of(at::globalContext().defaultGenerator(device));
  }
  return state;
}

RandomState RandomState::from(at::Tensor cpu, at::Device device, at::Tensor gpu) {
  RandomState state;
  state.cpu_ = std::move(cpu);
  if (gpu.defined()) state.gpu_device_ = device;
  state.gpu_ = std::move(gpu);
  return state;
}

void RandomState::restore() const {
  set_state(at::detail::getDefaultCPUGenerator(), cpu_);
  if (gpu_device_) set_state(at::globalContext().defaultGenerator(*gpu_device_), gpu_);
}

RandomStateGuard::RandomStateGuard(const RandomState& state, at::Device device)
    : before_(RandomState::now(device)) {
  state.restore();
}

// A device that has failed refuses the state. Waiting for the device reports the failure.
RandomStateGuard::~RandomStateGuard() {
  try {
    before_.restore();
  } catch (const std::exception& error) {
    log::warn(fmt::format("cannot restore the state of the random number generators: {}", error.what()));
  }
}

}  // namespace accel::train
