#include "train/model/initial_weights.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.hpp"

namespace accel::train {
namespace {

/// Elements drawn by one generator.
constexpr std::int64_t kBlock = 1 << 16;

// The finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

at::Tensor block_of(std::uint64_t seed, std::size_t parameter, std::int64_t block, double std) {
  const std::uint64_t own = mixed(mixed(seed ^ mixed(parameter)) ^ static_cast<std::uint64_t>(block));
  return at::empty({kBlock}, at::kFloat).normal_(0, std, at::detail::createCPUGenerator(own));
}

}  // namespace

void InitialWeights::read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) {
  const at::NoGradGuard no_grad;
  const ParameterInfo& parameter = structure_.parameters.at(index);
  if (parameter.dtype != "float32") {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("training.model.init: '{}' is {}, but only float32 parameters can have random values",
                    parameter.fqns.front(), parameter.dtype));
  }
  const auto count = static_cast<std::int64_t>(out.size() / sizeof(float));
  auto* values = reinterpret_cast<float*>(out.data());
  if (parameter.shape.size() < 2) {
    std::fill_n(values, count, parameter.fqns.front().ends_with("bias") ? 0.0F : 1.0F);
    return;
  }
  for (std::int64_t at = begin; at < begin + count;) {
    const std::int64_t within = at % kBlock;
    const std::int64_t taken = std::min(begin + count - at, kBlock - within);
    if (const std::pair wanted(index, at / kBlock); drawn_ != wanted) {
      block_ = block_of(seed_, index, at / kBlock, std_);
      drawn_ = wanted;
    }
    std::memcpy(values + (at - begin), block_.const_data_ptr<float>() + within,
                static_cast<std::size_t>(taken) * sizeof(float));
    at += taken;
  }
}

}  // namespace accel::train
