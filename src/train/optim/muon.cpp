#include "train/optim/muon.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace accel::train {
namespace {

constexpr int kNewtonSchulzSteps = 5;
constexpr double kEps = 1e-7;
constexpr double kA = 3.4445;
constexpr double kB = -4.7750;
constexpr double kC = 2.0315;

/// How many elements of flat buffers travel together, 256 MiB in bfloat16.
constexpr std::int64_t kBucketNumel = std::int64_t{128} << 20;

/// Returns an orthogonal matrix near `matrix` [rows, columns], which it changes. Both are bfloat16.
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

Muon::Muon(const OptimizerPlan& plan, std::vector<OptimizerState>& states, int shard,
           const MeshGroups* groups)
    : plan_(plan), shard_(shard), shards_(groups == nullptr ? nullptr : &groups->shard()) {
  std::vector<OptimizerState*> whole;
  std::vector<OptimizerState*> cut;
  for (OptimizerState& state : states) {
    if (plan.groups()[state.range.group].type != "muon") continue;
    (state.buffer->layout().mesh.shards() == 1 ? whole : cut).push_back(&state);
  }
  add_buckets(whole, 1);
  if (!cut.empty()) add_buckets(cut, cut.front()->buffer->layout().mesh.shards());
}

void Muon::add_buckets(const std::vector<OptimizerState*>& states, int owners) {
  std::vector<MatrixGroup> matrices;
  for (const OptimizerState* state : states) matrices.push_back({&state->buffer->layout(), state->range});
  for (MatrixBucket& bucket : plan_matrix_owners(matrices, owners, kBucketNumel)) {
    bucket.first += states_.size();
    bucket.end += states_.size();
    for (OwnedMatrix& matrix : bucket.matrices) matrix.group += states_.size();
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
  const std::size_t first = bucket.plan.first;
  std::vector<OwnedMatrix> matrices;
  for (const OwnedMatrix& matrix : bucket.plan.matrices) {
    if (presence.at(state_of(matrix).buffer_index).at(matrix.parameter)) matrices.push_back(matrix);
  }
  // The storage of shards may be offloaded. Matrices are multiplied, and travel, where the model computes.
  std::vector<at::Tensor> own;  // This rank's part of each buffer, and all of it.
  std::vector<at::Tensor> all;
  for (std::size_t i = first; i < bucket.plan.end; ++i) {
    const FlatBuffer& buffer = *states_[i]->buffer;
    const auto options = at::dtype(at::kBFloat16).device(buffer.compute_device());
    own.push_back(at::zeros({buffer.layout().shard_numel}, options));
    all.push_back(bucket.owners > 1 ? at::empty({buffer.layout().numel()}, options) : own.back());
  }
  for (const OwnedMatrix& matrix : matrices) change_momentum(matrix, own[matrix.group - first]);
  if (bucket.owners > 1) {
    std::vector<Pending> gathers;
    for (std::size_t i = 0; i < all.size(); ++i) gathers.push_back(shards_->all_gather(all[i], own[i]));
    for (Pending& gather : gathers) gather.wait();
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> results;  // The place of a matrix, and what goes there.
  for (const OwnedMatrix& matrix : matrices) {
    if (bucket.owners > 1 && matrix.owner != shard_) continue;
    const FlatParameter& parameter = parameter_of(matrix);
    const at::Tensor place =
        all[matrix.group - first].narrow(0, parameter.offset, parameter.numel).view(parameter.spec.shape);
    results.emplace_back(place, orthogonalized(place));
  }
  if (bucket.owners > 1) {
    for (at::Tensor& buffer : all) buffer.zero_();
  }
  for (const auto& [place, result] : results) place.copy_(result);
  if (bucket.owners > 1) {
    std::vector<Pending> scatters;
    for (std::size_t i = 0; i < all.size(); ++i)
      scatters.push_back(shards_->reduce_scatter_sum(own[i], all[i]));
    for (Pending& scatter : scatters) scatter.wait();
  }
  for (const OwnedMatrix& matrix : matrices) change_parameter(matrix, scale, own[matrix.group - first]);
}

Muon::Piece Muon::piece_of(const OwnedMatrix& matrix) const {
  const OptimizerState& state = state_of(matrix);
  const FlatLayout& layout = state.buffer->layout();
  const FlatParameter& parameter = parameter_of(matrix);
  const ElementRange shard = layout.shard_range(layout.is_replicated() ? 0 : shard_);
  const std::int64_t begin = std::clamp(parameter.offset, shard.begin, shard.end) - shard.begin;
  const std::int64_t end =
      std::clamp(parameter.offset + parameter.numel, shard.begin, shard.end) - shard.begin;
  if (begin == end) return {};
  return {{begin, end},
          state.buffer->shard().narrow(0, begin, end - begin),
          state.buffer->gradient().narrow(0, begin, end - begin),
          state.tensors[0].narrow(0, begin - state.in_shard.begin, end - begin)};
}

/// Changes the momentum of this rank's piece, and writes what is to be orthogonalized to its place in `own`.
void Muon::change_momentum(const OwnedMatrix& matrix, const at::Tensor& own) const {
  const Piece piece = piece_of(matrix);
  if (piece.in_shard.size() == 0) return;
  const config::OptimizerOptions& options = group_of(matrix).options;
  piece.momentum.lerp_(piece.gradient, 1 - *options.momentum);
  own.narrow(0, piece.in_shard.begin, piece.in_shard.size())
      .copy_(*options.nesterov ? piece.gradient.lerp(piece.momentum, *options.momentum) : piece.momentum);
}

void Muon::change_parameter(const OwnedMatrix& matrix, double scale, const at::Tensor& own) const {
  const Piece piece = piece_of(matrix);
  if (piece.in_shard.size() == 0) return;
  const OptimizerGroup& group = group_of(matrix);
  const double lr = group.lr * scale;
  piece.parameter.mul_(1 - lr * *group.options.weight_decay);
  const at::Tensor update = own.narrow(0, piece.in_shard.begin, piece.in_shard.size());
  piece.parameter.add_(update.to(piece.parameter.device()),
                       -lr * ratio_of(group, parameter_of(matrix).spec.shape));
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
