#pragma once

#include <ATen/core/Tensor.h>

#include "ranks/mesh.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// Takes the mean of gradients over the ranks of a mesh: a reduce-scatter over the shards, then an all-reduce
/// over the replicas.
///
/// In most dtypes the collectives take the mean. In float16 the sum of N gradients may overflow though its
/// mean does not, and a gradient divided by N may vanish. There the gradients are divided by about the square
/// root of N first, the collectives take sums, and the rest of the division follows.
///
/// Source: torch, _get_gradient_divide_factors of fully_shard, bit for bit.
class GradientMean {
 public:
  GradientMean(const Mesh& mesh, at::ScalarType dtype);

  /// Call before the first collective.
  void begin(const at::Tensor& gradient) const;
  Pending reduce_scatter(Group& shards, const at::Tensor& out, const at::Tensor& in) const;
  Pending all_reduce(Group& replicas, const at::Tensor& gradient) const;
  /// Call after the last collective.
  void end(const at::Tensor& gradient) const;

  /// The divisors: 1 for dtypes of which the collectives take the mean.
  [[nodiscard]] double before() const { return before_; }
  [[nodiscard]] double after() const { return after_; }

 private:
  bool divides_;
  double before_ = 1;
  double after_ = 1;
};

}  // namespace accel::train
