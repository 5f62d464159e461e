#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "train/graph/run/random_state.hpp"

namespace accel::train {

/// Random numbers of a rank's own, among ranks that draw the same numbers elsewhere: for as long as this
/// lives, the generators of the CPU and of a GPU draw what rank `rank` alone draws. Then they go on behind
/// one number, which every rank has drawn and of which the seeds of all ranks are made.
///
/// Source: the two kinds of random numbers in Shoeybi et al., "Megatron-LM", 2019, section 3.
class OwnRandom {
 public:
  OwnRandom(at::Device device, int rank);
  OwnRandom(const OwnRandom&) = delete;
  OwnRandom& operator=(const OwnRandom&) = delete;
  ~OwnRandom() = default;

 private:
  std::uint64_t seed_;  ///< Drawn before the generators are kept.
  RandomStateGuard guard_;
};

}  // namespace accel::train
