#include "train/optim/adafactor.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "plan/layout/state_tensor.hpp"
#include "train/device/read_numbers.hpp"
#include "train/optim/clip.hpp"

namespace accel::train {
namespace {

const FlatParameter& parameter_of(const OptimizerState& state, std::size_t parameter) {
  return state.buffer->layout().parameters[parameter];
}

/// The part of a block in `tensor`, which has [matrices, rows, columns] or has 1 in the place of some of
/// them.
at::Tensor part_of(at::Tensor tensor, const ckpt::Box& box) {
  for (std::size_t i = 0; i < box.sizes.size(); ++i) {
    const auto dim = static_cast<std::int64_t>(i);
    if (tensor.size(dim) != 1) tensor = tensor.narrow(dim, box.offsets[i], box.sizes[i]);
  }
  return tensor;
}

/// Adds up over the shards. The collective is of all ranks, and runs where the buffer computes: every replica
/// adds the same numbers, but groups of their own might add them in another order each.
void add_over(const MeshGroups* groups, const FlatBuffer& buffer, at::Tensor& sums) {
  if (groups == nullptr) return;
  const at::Tensor there = sums.to(buffer.compute_device());
  groups->world().all_reduce_sum(there).wait();
  sums.copy_(there.div_(groups->mesh().replicas()));
}

}  // namespace

Adafactor::Adafactor(const OptimizerPlan& plan, std::vector<OptimizerState>& states, int shard,
                     const MeshGroups* groups)
    : plan_(plan) {
  for (const OptimizerState& state : states) {
    if (plan.groups()[state.range.group].type != "adafactor") continue;
    const bool is_whole = state.buffer->layout().mesh.shards() == 1;
    const MeshGroups* const over = is_whole ? nullptr : groups;
    const at::Device device = state.buffer->shard().device();
    auto part = std::find_if(parts_.begin(), parts_.end(), [&](const Part& other) {
      return other.device == device && other.groups == over;
    });
    if (part == parts_.end()) part = parts_.insert(part, {device, over, {}});
    for (Item& item : items_of(state, is_whole ? 0 : shard)) part->items.push_back(std::move(item));
  }
}

std::vector<Adafactor::Item> Adafactor::items_of(const OptimizerState& state, int shard) const {
  const FlatLayout& layout = state.buffer->layout();
  const std::vector<StateTensor>& tensors = plan_.groups()[state.range.group].tensors;
  const bool has_rows = !tensors[0].is_cut();
  std::vector<Item> items;
  for (std::size_t i = state.range.first; i < state.range.end; ++i) {
    Item& item = items.emplace_back();
    item.state = &state;
    item.parameter = i;
    item.in_shard = {state.in_shard.begin, state.in_shard.begin};
    if (!has_rows) continue;
    item.matrices = as_matrices(layout.parameters[i].spec.shape);
    item.rows_at = offset_on_rank(tensors[0], layout, state.range, i);
    item.columns_at = offset_on_rank(tensors[1], layout, state.range, i);
  }
  for (const ShardPiece& piece : pieces_of(layout, shard)) {
    if (!state.has(piece.parameter)) continue;
    Item& item = items[piece.parameter - state.range.first];
    item.in_shard = {piece.shard_offset, piece.shard_offset + piece.in_parameter.size()};
    if (!has_rows) continue;
    std::int64_t in_shard = piece.shard_offset;
    for (ckpt::Box& box : matrix_blocks(layout.parameters[piece.parameter].spec.shape, piece.in_parameter)) {
      const std::int64_t numel = box.numel();
      item.blocks.push_back({std::move(box), in_shard});
      in_shard += numel;
    }
  }
  std::erase_if(items, [&](const Item& item) { return layout.parameters[item.parameter].numel == 0; });
  return items;
}

void Adafactor::step(double scale, const GradientPresence& presence) {
  for (const Part& part : parts_) step(part, scale, presence);
}

void Adafactor::step(const Part& part, double scale, const GradientPresence& presence) const {
  std::vector<const Item*> items;
  std::vector<std::int64_t>
      places;  // Where the sums of an item begin: its own, and those of rows and columns.
  std::int64_t numbers = 0;
  for (const Item& item : part.items) {
    if (!presence.at(item.state->buffer_index).at(item.parameter)) continue;
    items.push_back(&item);
    places.push_back(numbers);
    numbers += 1 + item.rows() + item.columns();
  }
  if (items.empty()) return;
  const FlatBuffer& buffer = *items.front()->state->buffer;
  at::Tensor sums = at::zeros({numbers}, at::dtype(at::kDouble).device(part.device));
  at::Tensor update_sums = at::zeros({static_cast<std::int64_t>(items.size())}, sums.options());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item& item = *items[i];
    const std::vector<std::int64_t>& shape = item.matrices;
    sums[places[i]].copy_(norm_of(item.of(item.state->buffer->shard())).square_());
    for (const Block& block : item.blocks) {
      const at::Tensor gradient =
          item.state->buffer->gradient().narrow(0, block.in_shard, block.box.numel()).view(block.box.sizes);
      const auto add_to = [&](std::int64_t place, const std::vector<std::int64_t>& means, std::int64_t dim) {
        const at::Tensor norms = at::linalg_vector_norm(gradient, 2, at::IntArrayRef(dim), /*keepdim=*/true);
        part_of(sums.narrow(0, place, means[0] * means[1] * means[2]).view(means), block.box)
            .add_(norms.square_());
      };
      add_to(places[i] + 1, {shape[0], shape[1], 1}, 2);
      add_to(places[i] + 1 + item.rows(), {shape[0], 1, shape[2]}, 1);
    }
  }
  add_over(part.groups, buffer, sums);
  std::vector<at::Tensor> squares;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item& item = *items[i];
    change_state(item, sums.narrow(0, places[i] + 1, item.rows() + item.columns()));
    const auto place = static_cast<std::int64_t>(i);
    update_sums[place].copy_(norm_of(item.of(item.state->buffer->gradient())).square_());
    squares.push_back(sums[places[i]]);
  }
  add_over(part.groups, buffer, update_sums);
  for (std::size_t i = 0; i < items.size(); ++i) squares.push_back(update_sums[static_cast<std::int64_t>(i)]);
  const std::vector<double> read = read_numbers(squares);
  for (std::size_t i = 0; i < items.size(); ++i)
    change_parameter(*items[i], scale, std::sqrt(read[i]), std::sqrt(read[items.size() + i]));
}

void Adafactor::change_state(const Item& item, const at::Tensor& sums) const {
  const OptimizerState& state = *item.state;
  const config::OptimizerOptions& options = group_of(item).options;
  const double least = *options.eps * *options.eps;
  const double weight = std::pow(static_cast<double>(state.steps_of(item.parameter)), *options.beta2_decay);
  const at::Tensor& gradient = state.buffer->gradient();
  if (item.matrices.empty()) {
    const at::Tensor own = item.of(gradient);
    const at::Tensor variance =
        state.tensors[0].narrow(0, item.in_shard.begin - state.in_shard.begin, item.in_shard.size());
    variance.lerp_(own * own, weight);
    own.mul_(variance.clamp(least).rsqrt_());
    return;
  }
  const std::int64_t count = item.matrices[0];
  const std::int64_t rows = item.matrices[1];
  const std::int64_t columns = item.matrices[2];
  const auto averaged = [&](const at::Tensor& tensor, std::int64_t begin, std::int64_t first,
                            std::int64_t numel, std::int64_t of) {
    at::Tensor means = tensor.narrow(0, begin, numel);
    return means.lerp_(sums.narrow(0, first, numel).to(at::kFloat).div_(of), weight);
  };
  const at::Tensor row_var =
      averaged(state.tensors[0], item.rows_at, 0, item.rows(), columns).view({count, rows, 1});
  const at::Tensor col_var = averaged(state.tensors[1], item.columns_at, item.rows(), item.columns(), rows)
                                 .view({count, 1, columns});
  const at::Tensor mean = row_var.mean(at::IntArrayRef{1}, /*keepdim=*/true).clamp_(*options.eps);
  for (const Block& block : item.blocks) {
    const at::Tensor variance = part_of(row_var, block.box)
                                    .mul(part_of(col_var, block.box))
                                    .div_(part_of(mean, block.box))
                                    .clamp_(least);
    gradient.narrow(0, block.in_shard, block.box.numel()).view(block.box.sizes).mul_(variance.rsqrt_());
  }
}

void Adafactor::change_parameter(const Item& item, double scale, double norm, double update_norm) const {
  const OptimizerGroup& group = group_of(item);
  const config::OptimizerOptions& options = group.options;
  const double lr = group.lr * scale;
  const double root = std::sqrt(static_cast<double>(parameter_of(*item.state, item.parameter).numel));
  const double relative =
      std::min(lr, 1 / std::sqrt(static_cast<double>(item.state->steps_of(item.parameter))));
  const double alpha = std::max(*options.eps2, norm / root) * relative;
  const double denominator = std::max(1.0, update_norm / (root * *options.d));
  const at::Tensor parameter = item.of(item.state->buffer->shard());
  if (*options.weight_decay != 0) parameter.mul_(1 - lr * *options.weight_decay);
  parameter.add_(item.of(item.state->buffer->gradient()), -alpha / denominator);
}

}  // namespace accel::train
