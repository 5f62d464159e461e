#include "train/optim/muon.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "train/optim/update_rules.hpp"

namespace accel::train {
namespace {

constexpr int kNewtonSchulzSteps = 5;
constexpr double kEps = 1e-7;
constexpr double kA = 3.4445;
constexpr double kB = -4.7750;
constexpr double kC = 2.0315;

/// How many elements travel together, 128 MiB in bfloat16.
constexpr std::int64_t kBucketNumel = std::int64_t{64} << 20;

/// Returns an orthogonal matrix near `matrix` [rows, columns], which it overwrites. Both are bfloat16.
/// Source: torch.optim._muon._zeropower_via_newtonschulz.
at::Tensor orthogonalized(const at::Tensor& matrix) {
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = is_tall ? matrix.t() : matrix;
  x.div_(x.norm().clamp(kEps));
  for (int i = 0; i < kNewtonSchulzSteps; ++i) {
    const at::Tensor gram = at::matmul(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, kB, kC), x, kA, 1);
  }
  return is_tall ? x.t() : x;
}

double ratio_of(const OptimizerGroup& group, const std::vector<std::int64_t>& shape) {
  const auto rows = static_cast<double>(shape.at(0));
  const auto columns = static_cast<double>(shape.at(1));
  if (group.options.adjust_lr_fn == "match_rms_adamw") return 0.2 * std::sqrt(std::max(rows, columns));
  return std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

Muon::Muon(const OptimizerPlan& plan, std::vector<OptimizerState>& states, int shard, Group* shards)
    : plan_(plan), shard_(shard), shards_(shards) {
  std::vector<OptimizerState*> whole;
  std::vector<OptimizerState*> cut;
  for (OptimizerState& state : states) {
    if (update_rule(plan.groups()[state.range.group]) != nullptr) continue;
    (state.buffer->layout().mesh.shards() == 1 ? whole : cut).push_back(&state);
  }
  add_buckets(whole, 1);
  if (!cut.empty()) add_buckets(cut, cut.front()->buffer->layout().mesh.shards());
}

void Muon::add_buckets(const std::vector<OptimizerState*>& states, int owners) {
  std::vector<MatrixGroup> matrices;
  for (const OptimizerState* state : states) matrices.push_back({&state->buffer->layout(), state->range});
  for (MatrixBucket& bucket : plan_matrix_owners(matrices, owners, kBucketNumel)) {
    for (OwnedMatrix& matrix : bucket.matrices) matrix.buffer += states_.size();
    buckets_.push_back({std::move(bucket), owners});
  }
  states_.insert(states_.end(), states.begin(), states.end());
}

const OptimizerGroup& Muon::group_of(const OwnedMatrix& matrix) const {
  return plan_.groups()[state_of(matrix).range.group];
}

void Muon::step(double scale, const GradientPresence& presence) {
  for (const Bucket& bucket : buckets_) step(bucket, scale, presence);
}

void Muon::step(const Bucket& bucket, double scale, const GradientPresence& presence) {
  const bool travels = bucket.owners > 1;
  const std::int64_t part_numel = bucket.plan.part_numel;
  // The storage of shards may be offloaded. Matrices are multiplied, and travel, where the model computes.
  const at::TensorOptions options =
      at::dtype(at::kBFloat16).device(state_of(bucket.plan.matrices.front()).buffer->compute_device());
  const at::Tensor all = at::zeros({part_numel * bucket.owners}, options);
  const auto place_of = [&](const OwnedMatrix& matrix) {
    const FlatParameter& parameter = state_of(matrix).buffer->layout().parameters[matrix.parameter];
    return all.narrow(0, matrix.owner * part_numel + matrix.offset, parameter.numel);
  };
  const auto has_gradient = [&](const OwnedMatrix& matrix) {
    return presence.at(state_of(matrix).buffer_index).at(matrix.parameter);
  };
  for (const OwnedMatrix& matrix : bucket.plan.matrices) {
    if (has_gradient(matrix)) change_momentum(matrix, place_of(matrix));
  }
  at::Tensor own = all;
  if (travels) {
    own = at::empty({part_numel}, options);
    shards_->reduce_scatter_sum(own, all).wait();
  }
  for (const OwnedMatrix& matrix : bucket.plan.matrices) {
    if (!has_gradient(matrix) || (travels && matrix.owner != shard_)) continue;
    const FlatParameter& parameter = state_of(matrix).buffer->layout().parameters[matrix.parameter];
    const at::Tensor place = own.narrow(0, matrix.offset, parameter.numel).view(parameter.spec.shape);
    place.copy_(orthogonalized(place));
  }
  if (travels) shards_->all_gather(all, own).wait();
  for (const OwnedMatrix& matrix : bucket.plan.matrices) {
    if (has_gradient(matrix)) change_parameter(matrix, scale, place_of(matrix));
  }
}

Muon::Piece Muon::piece_of(const OwnedMatrix& matrix) const {
  const OptimizerState& state = state_of(matrix);
  const FlatLayout& layout = state.buffer->layout();
  const FlatParameter& parameter = layout.parameters[matrix.parameter];
  const ElementRange shard = layout.shard_range(layout.is_replicated() ? 0 : shard_);
  const std::int64_t begin = std::clamp(shard.begin, parameter.offset, parameter.offset + parameter.numel);
  const std::int64_t end = std::clamp(shard.end, parameter.offset, parameter.offset + parameter.numel);
  if (begin == end) return {};
  const auto cut = [&](const at::Tensor& flat, std::int64_t first) {
    return flat.narrow(0, begin - first, end - begin);
  };
  return {{begin - parameter.offset, end - parameter.offset},
          cut(state.buffer->shard(), shard.begin),
          cut(state.buffer->gradient(), shard.begin),
          cut(state.tensors[0], shard.begin + state.in_shard.begin)};
}

/// Changes the momentum of this rank's piece, and writes what is to be orthogonalized to its place in `out`,
/// the whole matrix in bfloat16.
void Muon::change_momentum(const OwnedMatrix& matrix, const at::Tensor& out) const {
  const Piece piece = piece_of(matrix);
  if (piece.in_matrix.size() == 0) return;
  const config::OptimizerOptions& options = group_of(matrix).options;
  piece.momentum.lerp_(piece.gradient, 1 - *options.momentum);
  out.narrow(0, piece.in_matrix.begin, piece.in_matrix.size())
      .copy_(*options.nesterov ? piece.gradient.lerp(piece.momentum, *options.momentum) : piece.momentum);
}

void Muon::change_parameter(const OwnedMatrix& matrix, double scale, const at::Tensor& update) const {
  const Piece piece = piece_of(matrix);
  if (piece.in_matrix.size() == 0) return;
  const OptimizerGroup& group = group_of(matrix);
  const double lr = group.lr * scale;
  const FlatParameter& parameter = state_of(matrix).buffer->layout().parameters[matrix.parameter];
  piece.parameter.mul_(1 - lr * *group.options.weight_decay);
  const at::Tensor own = update.narrow(0, piece.in_matrix.begin, piece.in_matrix.size());
  piece.parameter.add_(own.to(piece.parameter.device()), -lr * ratio_of(group, parameter.spec.shape));
}

std::vector<std::pair<const char*, ckpt::pickle::Value>> muon_param_group(const OptimizerGroup& group) {
  const std::string& adjust = group.options.adjust_lr_fn;
  return {{"weight_decay", *group.options.weight_decay},
          {"momentum", *group.options.momentum},
          {"nesterov", *group.options.nesterov},
          {"ns_coefficients", ckpt::pickle::Tuple{{kA, kB, kC}}},
          {"eps", kEps},
          {"ns_steps", std::int64_t{kNewtonSchulzSteps}},
          {"adjust_lr_fn",
           adjust == "original" ? ckpt::pickle::Value(ckpt::pickle::None{}) : ckpt::pickle::Value(adjust)}};
}

}  // namespace accel::train
