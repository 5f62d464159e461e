#include "train/checkpoint/state_items.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::train {
namespace {

ckpt::DType dtype_of(at::ScalarType type) {
  const std::string name(c10::getDtypeNames(type).first);
  if (const auto dtype = ckpt::dtype_of_torch_name(name)) return *dtype;
  throw Error(ErrorKind::kUsage, fmt::format("checkpoints cannot hold tensors of dtype {}", name));
}

/// The part of a parameter that a rank has with tensor parallelism, if it is cut, and the rank's place.
struct RankPart {
  std::optional<TensorPart> part;
  int tp = 0;
};

/// Adds a parameter's range as chunks, with the place of each chunk's elements in `flat`. `shape` is what the
/// rank has of the parameter, of which `own` says the place in the whole one.
void add_range(RankState& state, const ckpt::StatePath& path, ckpt::DType dtype,
               const std::vector<std::int64_t>& shape, const ElementRange& range, const at::Tensor& flat,
               std::int64_t flat_begin, const RankPart& own = {}) {
  std::vector<std::int64_t> whole = shape;
  if (own.part) whole.at(own.part->dim) = own.part->whole;
  for (ckpt::Box& box : ckpt::boxes_of_range(shape, range.begin, range.end)) {
    const std::int64_t numel = box.numel();
    // The parts of all ranks have one size.
    if (own.part) box.offsets.at(own.part->dim) += own.part->size * own.tp;
    state.items.push_back({path, ckpt::TensorChunk{dtype, whole, std::move(box)}});
    state.sources.push_back({flat, flat_begin, numel});
    flat_begin += numel;
  }
}

void add_object(RankState& state, ckpt::StatePath path, ckpt::pickle::Value value) {
  state.items.push_back({std::move(path), std::move(value)});
  state.sources.emplace_back();
}

/// Calls `visit` with each of torch's param_groups of the optimizer `number` that has parameters, and the
/// names of these.
template <class Visit>
void visit_groups(const Optimizer& optimizer, std::size_t number, const Visit& visit) {
  const std::vector<OptimizerGroup>& groups = optimizer.plan().groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].optimizer != number || groups[i].param_group != i) continue;
    ckpt::pickle::List names;
    for (const OptimizerState& state : optimizer.states()) {
      if (groups[state.range.group].param_group != i) continue;
      for (std::size_t at = state.range.first; at < state.range.end; ++at)
        names.items.emplace_back(state.buffer->layout().parameters[at].spec.fqns.front());
    }
    if (!names.items.empty()) visit(groups[i], names);
  }
}

/// Adds torch's param_groups.
void add_param_groups(RankState& state, const Optimizer& optimizer, const OptimizerPart& part) {
  std::int64_t number = 0;
  visit_groups(optimizer, part.optimizer, [&](const OptimizerGroup& group, const ckpt::pickle::List& names) {
    const auto add = [&](const char* key, const ckpt::pickle::Value& value) {
      add_object(state, {"optimizer", "param_groups", number, key}, value);
    };
    add("params", names);
    add("lr", group.lr * part.scale);
    add("initial_lr", group.lr);
    for (const auto& [key, value] : param_group(group)) add(key, value);
    ++number;
  });
}

}  // namespace

std::vector<std::size_t> used_optimizers(const Optimizer& optimizer) {
  std::vector<std::size_t> used;
  for (std::size_t number = 0; number < optimizer.plan().optimizers(); ++number) {
    if (!base_rates(optimizer, number).empty()) used.push_back(number);
  }
  return used;
}

std::vector<double> base_rates(const Optimizer& optimizer, std::size_t number) {
  std::vector<double> rates;
  visit_groups(optimizer, number,
               [&](const OptimizerGroup& group, const auto& /*names*/) { rates.push_back(group.lr); });
  return rates;
}

void add_whole(RankState& state, ckpt::StatePath path, const at::Tensor& tensor) {
  const std::vector<std::int64_t> shape = tensor.sizes().vec();
  state.items.push_back(
      {std::move(path), ckpt::TensorChunk{dtype_of(tensor.scalar_type()), shape, ckpt::Box::whole(shape)}});
  state.sources.push_back({tensor.contiguous(), 0, tensor.numel()});
}

RankState model_state(const ShardedModel& model, bool adapter_only, int rank) {
  RankState state;
  const MeshPlace place = model.groups().mesh().place_of(rank);
  const auto name_of = [&](const std::string& fqn) {
    return adapter_only ? ckpt::adapter_file_name(fqn) : fqn;
  };
  for (const auto& unit : model.units()) {
    for (const auto& buffer : unit->buffers()) {
      if (adapter_only && !buffer->trainable()) continue;
      const FlatLayout& layout = buffer->layout();
      const ckpt::DType dtype = dtype_of(buffer->dtype());
      for (const ShardPiece& piece : portion_pieces(layout, place)) {
        const ParameterSpec& spec = layout.parameters[piece.parameter].spec;
        for (const std::string& fqn : spec.fqns) {
          add_range(state, {"model", name_of(fqn)}, dtype, spec.shape, piece.in_parameter, buffer->shard(),
                    piece.shard_offset, {spec.part, place.tp});
        }
      }
      if (rank != 0) continue;
      for (const FlatParameter& parameter : layout.parameters) {
        if (parameter.numel > 0) continue;
        for (const std::string& fqn : parameter.spec.fqns) {
          add_whole(state, {"model", name_of(fqn)},
                    at::empty(parameter.spec.shape, at::TensorOptions().dtype(buffer->dtype())));
        }
      }
    }
  }
  if (rank == 0 && !adapter_only) {
    for (const auto& [name, tensor] : model.persistent_buffers()) add_whole(state, {"model", name}, tensor);
  }
  return state;
}

std::map<std::string, std::string> tied_names(const ShardedModel& model) {
  std::map<std::string, std::string> names;
  const auto name_of = [](const std::string& fqn) { return ckpt::fqn_of({"model", fqn}); };
  for (const auto& unit : model.units()) {
    for (const auto& buffer : unit->buffers()) {
      for (const FlatParameter& parameter : buffer->layout().parameters) {
        for (const std::string& fqn : parameter.spec.fqns) {
          if (fqn != parameter.spec.fqns.front()) names[name_of(fqn)] = name_of(parameter.spec.fqns.front());
        }
      }
    }
  }
  return names;
}

RankState optimizer_state(const Optimizer& optimizer, const std::vector<OptimizerState>& states,
                          const Mesh& mesh, const OptimizerPart& part) {
  RankState result;
  const auto path = [](const ParameterSpec& spec, const StateTensor& tensor) {
    ckpt::StatePath keys{"optimizer", "state", spec.fqns.front(), std::string(tensor.name)};
    if (!tensor.part.empty()) keys.emplace_back(std::string(tensor.part));
    return keys;
  };
  for (const OptimizerState& state : states) {
    const OptimizerGroup& group = optimizer.plan().groups()[state.range.group];
    if (group.optimizer != part.optimizer) continue;
    const FlatLayout& layout = state.buffer->layout();
    const MeshPlace place = mesh.place_of(part.rank);
    for (const ShardPiece& piece : portion_pieces(layout, place)) {
      if (!state.has(piece.parameter)) continue;
      const ParameterSpec& spec = layout.parameters[piece.parameter].spec;
      for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        const StateTensor& tensor = group.tensors[i];
        if (!tensor.is_cut()) continue;
        const at::Tensor& flat = state.tensors[i];
        const std::int64_t each = tensor.elems_each();
        add_range(result, path(spec, tensor), dtype_of(flat.scalar_type()), tensor.shape_for(spec.shape),
                  {piece.in_parameter.begin / each, piece.in_parameter.end / each}, flat,
                  (piece.shard_offset - state.in_shard.begin) / each, {spec.part, place.tp});
      }
    }
    if (part.rank != 0) continue;
    for (std::size_t i = state.range.first; i < state.range.end; ++i) {
      const FlatParameter& parameter = layout.parameters[i];
      if (group.counts_steps) {
        add_whole(result, path(parameter.spec, {"step"}),
                  at::full({}, static_cast<double>(state.steps_of(i)), at::kFloat));
      }
      for (std::size_t t = 0; t < group.tensors.size(); ++t) {
        const StateTensor& tensor = group.tensors[t];
        const std::vector<std::int64_t> shape = tensor.shape_for(parameter.spec.shape);
        const std::int64_t numel = checked_numel(shape);
        if (numel == 0) {
          add_whole(result, path(parameter.spec, tensor), at::empty(shape, at::kFloat));
        } else if (!tensor.is_cut()) {
          add_range(result, path(parameter.spec, tensor), ckpt::DType::kFloat32, shape, {0, numel},
                    state.tensors[t], offset_on_rank(tensor, layout, state.range, i));
        }
      }
    }
  }
  if (part.rank == 0) add_param_groups(result, optimizer, part);
  return result;
}

}  // namespace accel::train
