#include "train/fsdp/buffers/gradient_mean.hpp"

#include <ATen/ATen.h>

namespace accel::train {
namespace {

void divide(at::Tensor gradient, double by) {
  if (by != 1) gradient.div_(by);
}

}  // namespace

GradientMean::GradientMean(const Mesh& mesh, at::ScalarType dtype)
    : divides_(dtype == at::kHalf && mesh.mean_size() > 1) {
  if (!divides_) return;
  const int ranks = mesh.mean_size();
  int before = 1;
  while (ranks % before == 0 && ranks / before > before) before *= 2;
  before_ = before;
  after_ = static_cast<double>(ranks) / before;
}

void GradientMean::begin(const at::Tensor& gradient) const { divide(gradient, before_); }

Pending GradientMean::reduce_scatter(Group& shards, const at::Tensor& out, const at::Tensor& in) const {
  return divides_ ? shards.reduce_scatter_sum(out, in) : shards.reduce_scatter_mean(out, in);
}

Pending GradientMean::all_reduce(Group& replicas, const at::Tensor& gradient) const {
  return divides_ ? replicas.all_reduce_sum(gradient) : replicas.all_reduce_mean(gradient);
}

void GradientMean::end(const at::Tensor& gradient) const { divide(gradient, after_); }

}  // namespace accel::train
