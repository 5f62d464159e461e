#pragma once

#include <ATen/core/Tensor.h>

#include "ranks/mesh.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// How gradients of a mesh's ranks become their mean: a reduce-scatter over the shards, an all-reduce over
/// the replicas.
///
/// Both take the mean themselves, but in float16, where the sum of N gradients may overflow though its mean
/// does not, and a gradient that is divided by N may vanish: there they take the sum of what was divided by
/// about the square root of N before, and the rest is divided after.
///
/// Source: torch, _get_gradient_divide_factors of fully_shard, bit for bit.
class GradientMean {
 public:
  GradientMean(const Mesh& mesh, at::ScalarType dtype);

  /// Before the first collective.
  void begin(const at::Tensor& gradient) const;
  Pending reduce_scatter(Group& shards, const at::Tensor& out, const at::Tensor& in) const;
  Pending all_reduce(Group& replicas, const at::Tensor& gradient) const;
  /// After the last.
  void end(const at::Tensor& gradient) const;

  /// By what is divided: 1 for dtypes that the collectives take the mean of.
  [[nodiscard]] double before() const { return before_; }
  [[nodiscard]] double after() const { return after_; }

 private:
  bool divides_;
  double before_ = 1;
  double after_ = 1;
};

}  // namespace accel::train
