#include "train/checkpoint/state_items.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>

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

/// Adds a parameter's range as chunks, with the place of each chunk's elements in `flat`.
void add_range(RankState& state, const ckpt::StatePath& path, ckpt::DType dtype,
               const std::vector<std::int64_t>& shape, const ElementRange& range, const at::Tensor& flat,
               std::int64_t flat_begin) {
  for (ckpt::Box& box : ckpt::boxes_of_range(shape, range.begin, range.end)) {
    const std::int64_t numel = box.numel();
    state.items.push_back({path, ckpt::TensorChunk{dtype, shape, std::move(box)}});
    state.sources.push_back({flat, flat_begin, numel});
    flat_begin += numel;
  }
}

void add_object(RankState& state, ckpt::StatePath path, ckpt::pickle::Value value) {
  state.items.push_back({std::move(path), std::move(value)});
  state.sources.emplace_back();
}

/// Adds torch's param_groups: one for the parameters with weight decay, one for those without.
void add_param_groups(RankState& state, const Optimizer& optimizer, const LearningRates& lr) {
  std::int64_t group = 0;
  for (const bool decay : {true, false}) {
    ckpt::pickle::List names;
    for (const Optimizer::State& entry : optimizer.states()) {
      for (const FlatParameter& parameter : entry.buffer->layout().parameters) {
        if (parameter.spec.decay == decay) names.items.emplace_back(parameter.spec.fqns.front());
      }
    }
    if (names.items.empty()) continue;
    const auto add = [&](const char* key, const ckpt::pickle::Value& value) {
      add_object(state, {"optimizer", "param_groups", group, key}, value);
    };
    add("params", names);
    add("lr", lr.next);
    add("initial_lr", lr.base);
    for (const auto& [key, value] : optimizer.param_group(decay)) add(key, value);
    ++group;
  }
}

}  // namespace

std::size_t count_param_groups(const std::vector<Optimizer::State>& states) {
  std::array<bool, 2> found = {};
  for (const Optimizer::State& state : states) {
    for (const FlatParameter& parameter : state.buffer->layout().parameters)
      found[parameter.spec.decay ? 1 : 0] = true;
  }
  return static_cast<std::size_t>(std::count(found.begin(), found.end(), true));
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
                    piece.shard_offset);
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

RankState optimizer_state(const Optimizer& optimizer, const std::vector<Optimizer::State>& states,
                          const Mesh& mesh, const LearningRates& lr, int rank) {
  RankState state;
  const std::span<const OptimizerTensor> tensors = optimizer.plan().tensors;
  const auto path = [](const ParameterSpec& spec, std::string_view name) {
    return ckpt::StatePath{"optimizer", "state", spec.fqns.front(), std::string(name)};
  };
  for (const Optimizer::State& entry : states) {
    const FlatLayout& layout = entry.buffer->layout();
    for (const ShardPiece& piece : portion_pieces(layout, mesh.place_of(rank))) {
      const ParameterSpec& spec = layout.parameters[piece.parameter].spec;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const at::Tensor& flat = entry.tensors[i];
        add_range(state, path(spec, tensors[i].name), dtype_of(flat.scalar_type()), spec.shape,
                  piece.in_parameter, flat, piece.shard_offset);
      }
    }
    if (rank != 0) continue;
    for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
      const FlatParameter& parameter = layout.parameters[i];
      add_whole(state, path(parameter.spec, "step"),
                at::full({}, static_cast<double>(entry.steps[i]), at::kFloat));
      if (parameter.numel > 0) continue;
      for (const OptimizerTensor& tensor : tensors)
        add_whole(state, path(parameter.spec, tensor.name), at::empty(parameter.spec.shape, at::kFloat));
    }
  }
  if (rank == 0) add_param_groups(state, optimizer, lr);
  return state;
}

}  // namespace accel::train
