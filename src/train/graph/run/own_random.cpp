#include "train/graph/run/own_random.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <cstdint>
#include <mutex>

namespace accel::train {
namespace {

std::uint64_t draw() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

void set_seed(at::Generator generator, std::uint64_t seed) {
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace

// The generator of the CPU takes the lower half of a seed.
OwnRandom::OwnRandom(at::Device device, int rank)
    : seed_(draw() + static_cast<std::uint64_t>(rank)), guard_(RandomState::now(device), device) {
  set_seed(at::detail::getDefaultCPUGenerator(), seed_);
  if (!device.is_cpu()) set_seed(at::globalContext().defaultGenerator(device), seed_);
}

}  // namespace accel::train
