#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "train/graph/run/random_state.hpp"

namespace accel::train {

/// The random numbers of a rank of tensor parallelism where it computes with a part of the activations: from
/// a linear whose output is cut to the linear that sums its output. There each rank draws numbers of its own,
/// so that the dropout of heads, or of a part of an MLP, has another mask on each rank. Elsewhere the ranks
/// draw the same numbers, because their activations are the same.
///
/// Source: the two kinds of random numbers in Shoeybi et al., "Megatron-LM", 2019, section 3.
class PartRandom {
 public:
  /// Makes the generators of the CPU and of `device` draw what rank `rank` alone draws, until leave(). Draws
  /// one number on each rank, from which all their seeds are made. Does nothing if it is so already.
  void enter(at::Device device, int rank);
  /// The generators go on where they were behind that draw. Does nothing without an enter().
  void leave();

 private:
  /// A recomputation may have ended between enter() and leave(), and have put the generators back.
  [[nodiscard]] bool is_inside() const;

  std::uint64_t seed_ = 0;
  std::optional<RandomState> outside_;
};

}  // namespace accel::train
