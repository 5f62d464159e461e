#include "train/fsdp/part_random.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

namespace accel::train {
namespace {

void set_seed(at::Generator generator, std::uint64_t seed) {
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

std::uint64_t draw() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

}  // namespace

bool PartRandom::is_inside() const {
  return outside_ && at::detail::getDefaultCPUGenerator().current_seed() == seed_;
}

void PartRandom::enter(at::Device device, int rank) {
  if (is_inside()) return;
  // The generator of the CPU takes the lower half of a seed.
  seed_ = draw() + static_cast<std::uint64_t>(rank);
  outside_ = RandomState::now(device);
  set_seed(at::detail::getDefaultCPUGenerator(), seed_);
  if (!device.is_cpu()) set_seed(at::globalContext().defaultGenerator(device), seed_);
}

void PartRandom::leave() {
  if (is_inside()) outside_->restore();
  outside_.reset();
}

}  // namespace accel::train
