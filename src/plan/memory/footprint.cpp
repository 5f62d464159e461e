#include "plan/memory/footprint.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "base/checked.hpp"
#include "plan/layout/buffer_plan.hpp"
#include "plan/layout/comm_hook_plan.hpp"
#include "plan/memory/autocast_copies.hpp"
#include "plan/memory/step_memory.hpp"

namespace accel {
namespace {

using Bytes = std::uint64_t;

void add(Bytes& sum, Bytes amount) { sum = checked_add(sum, amount); }
void add(std::int64_t& sum, std::int64_t amount) { sum = checked_add(sum, amount); }

/// Counts what each rank writes into a checkpoint. A run of ranks that write the same costs two entries, so
/// that a parameter over all ranks takes no longer than others.
class CheckpointBytes {
 public:
  explicit CheckpointBytes(int ranks) : steps_(static_cast<std::size_t>(ranks) + 1, 0) {}

  /// Elements [begin, begin + numel) of a buffer that is cut every `shard_numel`, each of which takes `cost`
  /// bytes in the checkpoint. Ranks are counted in the order of their parts.
  /// `parts` ranks of tensor parallelism write as much, each of its own elements; only the first is one of
  /// these ranks.
  void add_range(std::int64_t begin, std::int64_t numel, std::int64_t shard_numel, std::int64_t cost,
                 int parts) {
    if (numel == 0) return;
    add(elsewhere_, checked_mul(checked_mul(numel, cost), std::int64_t{parts} - 1));
    const std::int64_t end = checked_add(begin, numel);
    const std::int64_t first = begin / shard_numel;
    const std::int64_t last = (end - 1) / shard_numel;
    if (first == last) return add_to(first, last, checked_mul(numel, cost));
    add_to(first, first, checked_mul((first + 1) * shard_numel - begin, cost));
    add_to(first + 1, last - 1, checked_mul(shard_numel, cost));
    add_to(last, last, checked_mul(end - last * shard_numel, cost));
  }
  /// Adds `bytes` to each of the ranks `first` to `last`.
  void add_to(std::int64_t first, std::int64_t last, std::int64_t bytes) {
    if (first > last) return;
    add(steps_[static_cast<std::size_t>(first)], bytes);
    add(steps_[static_cast<std::size_t>(last) + 1], -bytes);
  }

  void finish(Footprint& result) const {
    add(result.checkpoint_bytes, static_cast<Bytes>(elsewhere_));
    std::int64_t rank = 0;
    for (std::size_t r = 0; r + 1 < steps_.size(); ++r) {
      add(rank, steps_[r]);
      add(result.checkpoint_bytes, static_cast<Bytes>(rank));
      result.checkpoint_rank_bytes = std::max(result.checkpoint_rank_bytes, static_cast<Bytes>(rank));
    }
  }

 private:
  std::vector<std::int64_t> steps_;  // Each entry is the difference to the rank before.
  std::int64_t elsewhere_ = 0;       // What other ranks of tensor parallelism write.
};

/// A parameter is written under each of its names. Its optimizer state is written under one name, with the
/// number of steps.
void add_checkpoint(CheckpointBytes& checkpoint, const BufferPlan& buffer, const OptimizerPlan& optimizer) {
  constexpr std::int64_t kStepBytes = 4;
  for (const FlatParameter& parameter : buffer.layout.parameters) {
    const std::int64_t cost =
        checked_mul(static_cast<std::int64_t>(parameter.spec.fqns.size()), buffer.item_bytes);
    const std::int64_t portion = buffer.layout.portion_numel();
    const int parts = buffer.tensor_cut ? buffer.layout.mesh.tp() : 1;
    checkpoint.add_range(parameter.offset, parameter.numel, portion, cost, parts);
    if (!buffer.trainable) continue;
    const OptimizerGroup& group = optimizer.groups()[parameter.spec.group];
    for (const StateTensor& tensor : group.tensors) {
      const std::int64_t each = tensor.elems_each();
      if (tensor.is_cut()) {
        checkpoint.add_range(parameter.offset / each, parameter.numel / each, portion / each,
                             tensor.bytes_each(), parts);
      } else {
        checkpoint.add_to(0, 0, checked_mul(tensor.numel_for(parameter.spec.shape), tensor.bytes_each()));
      }
    }
    if (group.counts_steps) checkpoint.add_to(0, 0, kStepBytes);
  }
}

bool has_hook(const FootprintOptions& options) {
  return options.ddp.comm_hook != config::CommHookType::kNo && options.mesh.shards() == 1 &&
         options.mesh.replicas() > 1;
}

/// How often a unit is gathered in a step: over the shard group, and over the reshard group.
struct Gathers {
  Bytes from_shards = 0;
  Bytes from_group = 0;
};

/// Bytes that each of `ranks` sends of `bytes` in a ring.
Bytes ring(Bytes bytes, int ranks) {
  return checked_mul(bytes / static_cast<Bytes>(ranks), static_cast<Bytes>(ranks - 1));
}

/// Adds the cost of trained replicated parameters.
void add_replicated_training(UnitFootprint& unit, const BufferPlan& buffer, const FootprintOptions& options) {
  const Bytes state = state_bytes(buffer.layout, options.optimizer);
  add(unit.gradient_bytes, buffer.shard_bytes());
  add(unit.optimizer_bytes, state);
  add(unit.replicated_training_bytes, checked_add(buffer.shard_bytes(), state));
  add(unit.average_bytes, checked_mul(ring(buffer.gradient_bytes(), options.mesh.mean_size()), Bytes{2}));
}

UnitFootprint footprint_of_unit(const ModelStructure& model, const UnitPlan& unit,
                                const std::vector<BufferPlan>& buffers, const FootprintOptions& options,
                                const Gathers& gathers) {
  UnitFootprint result{unit.module, unit.class_name, unit.parameters.size()};
  for (const std::size_t index : unit.parameters) {
    const ParameterInfo& parameter = model.parameters[index];
    const std::int64_t numel = checked_numel(parameter.shape);
    add(result.elements, numel);
    if (parameter.requires_grad) add(result.trainable, numel);
  }
  const Mesh& mesh = options.mesh;
  for (const BufferPlan& buffer : buffers) {
    const Bytes shard = buffer.shard_bytes();
    add(result.cast_bytes, autocast_bytes(buffer, options.precision, options.names_without_cast));
    if (buffer.replicated) {
      add(result.replicated_bytes, shard);
      if (buffer.trainable) add_replicated_training(result, buffer, options);
      continue;
    }
    add(result.padded_elements, buffer.layout.numel());
    add(result.shard_bytes, shard);
    add(result.unsharded_bytes, buffer.bytes());
    add(result.gather_bytes, checked_mul(ring(buffer.bytes(), mesh.shards()), gathers.from_shards));
    if (gathers.from_group > 0)
      add(result.gather_bytes, checked_mul(ring(buffer.bytes(), options.reshard_size), gathers.from_group));
    if (!buffer.trainable) continue;
    add(result.gradient_bytes, shard);
    add(result.optimizer_bytes, state_bytes(buffer.layout, options.optimizer));
    add(result.reduce_bytes, ring(buffer.gradient_bytes(), mesh.shards()));
    const Bytes part = has_hook(options) ? plan_comm_hook(buffer.layout, options.ddp).sent_bytes
                                         : buffer.gradient_bytes() / static_cast<Bytes>(mesh.shards());
    add(result.average_bytes, checked_mul(ring(part, mesh.replicas()), Bytes{2}));
  }
  return result;
}

/// The path of the layer with compiled code around `fqn`; empty if there is none.
std::string compiled_layer_of(const std::string& fqn, const std::set<std::string>& layers) {
  const auto around = std::find_if(layers.begin(), layers.end(),
                                   [&](const std::string& layer) { return is_inside(fqn, layer); });
  return around == layers.end() ? std::string() : *around;
}

/// Returns the most bytes that gradients of the unit take before they are copied: those of one parameter, or
/// of all parameters of a layer with compiled code, whose gradients arrive at once. For a parameter with
/// several names, which has a gradient for each use, autograd has two gradients and their sum. One that
/// autocast copies has at first a gradient in 16 bits, in the place of the copy, and then one to which
/// autograd adds the other.
Bytes gradient_temp_bytes(const std::vector<BufferPlan>& buffers, const FootprintOptions& options) {
  Bytes most = 0;
  std::map<std::string, Bytes> layers;
  for (const BufferPlan& buffer : buffers) {
    if (!buffer.trainable) continue;
    for (const FlatParameter& parameter : buffer.layout.parameters) {
      auto bytes = static_cast<Bytes>(checked_mul(parameter.numel, buffer.compute_bytes));
      const std::size_t names = parameter.spec.fqns.size();
      const bool adds_in_place =
          names == 2 && autocast_copies(buffer, parameter, options.precision, options.names_without_cast) > 0;
      bytes = checked_mul(bytes, Bytes{names == 1 ? 1U : adds_in_place ? 2U : 3U});
      const std::string layer = compiled_layer_of(parameter.spec.fqns.front(), options.compiled_layers);
      if (!layer.empty()) {
        Bytes& sum = layers[layer];
        add(sum, bytes);
        bytes = sum;
      }
      most = std::max(most, bytes);
    }
  }
  return most;
}

/// The units as they run: of plan_units()'s order, in which a unit stands behind all inside it, a tree.
StepUnit tree_of(const std::vector<UnitPlan>& units, const std::vector<std::vector<BufferPlan>>& buffers,
                 const std::vector<UnitFootprint>& footprints, const FootprintOptions& options) {
  std::vector<std::pair<std::size_t, StepUnit>> done;  // The units whose outer unit is yet to come.
  for (std::size_t i = 0; i < units.size(); ++i) {
    StepUnit unit;
    unit.stays_gathered = units[i].stays_gathered;
    unit.recomputes = units[i].checkpoints;
    unit.cast_bytes = footprints[i].cast_bytes;
    unit.gradient_temp_bytes = gradient_temp_bytes(buffers[i], options);
    for (const BufferPlan& buffer : buffers[i]) {
      if (buffer.trainable) {
        add(unit.shard_gradient_bytes, buffer.shard_bytes());
        if (buffer.replicated) add(unit.replicated_gradient_bytes, buffer.shard_bytes());
        if (buffer.reduce_dtype != buffer.dtype && buffer.layout.mesh.shards() > 1 &&
            !options.stored_on_host) {
          const Bytes part = buffer.gradient_bytes() / static_cast<Bytes>(buffer.layout.mesh.shards());
          unit.finalizing_bytes = std::max(unit.finalizing_bytes, part);
        }
      }
      if (buffer.is_alias() && (buffer.replicated || !options.stored_on_host)) continue;
      unit.buffers.push_back({buffer.bytes(), buffer.trainable ? buffer.gradient_bytes() : 0});
    }
    auto first = done.end();
    while (first != done.begin() && is_inside(units[std::prev(first)->first].module, units[i].module))
      --first;
    for (auto inner = first; inner != done.end(); ++inner) unit.inner.push_back(std::move(inner->second));
    done.erase(first, done.end());
    done.emplace_back(i, std::move(unit));
  }
  return done.empty() ? StepUnit() : std::move(done.back().second);
}

/// How many units other than the root each unit is in.
std::vector<std::size_t> depths_of(const std::vector<UnitPlan>& units) {
  std::vector<std::size_t> depths(units.size());
  std::vector<std::size_t> around;  // A unit stands before those it is in: from the end, they come first.
  for (std::size_t i = units.size(); i-- > 0;) {
    while (!around.empty() && !is_inside(units[i].module, units[around.back()].module)) around.pop_back();
    depths[i] = around.empty() ? 0 : around.size() - 1;
    around.push_back(i);
  }
  return depths;
}

/// All-gathers of a unit in a step.
Gathers gathers_of(const UnitPlan& unit, std::size_t depth, const FootprintOptions& options) {
  const auto micro_batches = static_cast<Bytes>(options.micro_batches);
  const Bytes runs = options.activation_checkpointing ? depth + 1 : 1;
  const bool reshards = options.reshard_after_forward && !unit.stays_gathered;
  const Bytes gathers = checked_mul(micro_batches, runs + (reshards ? 1 : 0));
  if (!reshards || options.reshard_size == 0) return {gathers, 0};
  return {micro_batches, gathers - micro_batches};
}

/// The most bytes on the device at once with offloading: gradients of shards that wait for their reduction
/// or for the copy to the host, and a shard and a gradient in the dtype of the shard, if that is another
/// dtype.
Bytes bytes_of_copies(const std::vector<std::vector<BufferPlan>>& buffers, const FootprintOptions& options) {
  std::vector<Bytes> gradients;
  Bytes converted = 0;
  const auto shards = static_cast<Bytes>(options.mesh.shards());
  for (const std::vector<BufferPlan>& unit_buffers : buffers) {
    for (const BufferPlan& buffer : unit_buffers) {
      if (buffer.replicated) continue;
      if (buffer.gather_dtype != buffer.dtype) converted = std::max(converted, buffer.shard_bytes());
      // With one shard the gradient of the shard is the unsharded gradient.
      if (buffer.trainable && shards > 1) gradients.push_back(buffer.gradient_bytes() / shards);
    }
  }
  std::sort(gradients.rbegin(), gradients.rend());
  gradients.resize(
      std::min(gradients.size(), kMaxReducing + kMaxStoring * (options.mesh.replicas() > 1 ? 2 : 1)));
  Bytes sum = checked_mul(converted, Bytes{2});
  for (const Bytes gradient : gradients) add(sum, gradient);
  return sum;
}

/// The state of communication hooks for all buffers, and the copies of the kMaxHooked largest gradients.
Bytes bytes_of_hooks(const std::vector<std::vector<BufferPlan>>& buffers, const FootprintOptions& options) {
  Bytes sum = 0;
  std::vector<Bytes> copies;
  for (const std::vector<BufferPlan>& unit_buffers : buffers) {
    for (const BufferPlan& buffer : unit_buffers) {
      if (!buffer.trainable) continue;
      const CommHookPlan plan = plan_comm_hook(buffer.layout, options.ddp);
      add(sum, plan.state_bytes);
      copies.push_back(plan.copied_bytes);
    }
  }
  std::sort(copies.rbegin(), copies.rend());
  copies.resize(std::min(copies.size(), kMaxHooked));
  for (const Bytes copy : copies) add(sum, copy);
  return sum;
}

MemoryFootprint memory_of(const std::vector<UnitPlan>& units,
                          const std::vector<std::vector<BufferPlan>>& buffers,
                          const std::vector<UnitFootprint>& footprints, const FootprintOptions& options) {
  MemoryFootprint memory;
  for (const UnitFootprint& unit : footprints) {
    add(memory.shard_bytes, unit.shard_bytes);
    add(memory.optimizer_bytes, unit.optimizer_bytes);
    add(memory.gradient_bytes, unit.gradient_bytes);
  }
  const bool one_shard = options.mesh.shards() == 1;
  const StepMemory step = memory_of_step(tree_of(units, buffers, footprints, options),
                                         {.one_shard = one_shard,
                                          .averages = options.mesh.replicas() > 1,
                                          .stored_on_host = options.stored_on_host,
                                          .keeps_blocks = options.keeps_blocks,
                                          .reshard_after_forward = options.reshard_after_forward,
                                          .reshard_size = options.reshard_size,
                                          .forward_prefetch = options.forward_prefetch,
                                          .backward_prefetch = options.backward_prefetch,
                                          .prefetch_depth = options.prefetch_depth,
                                          .accumulates = options.micro_batches > 1,
                                          .recompute = options.activation_checkpointing});
  memory.gradient_temp_bytes = step.gradient_temp_bytes;
  memory.cast_bytes = step.cast_bytes;
  // With one shard, and without mixed precision, the shard is used in place of unsharded parameters and
  // gradients.
  if (!one_shard || options.stored_on_host || !options.precision.param_dtype.empty()) {
    memory.unsharded_parameter_bytes = step.parameter_bytes;
    memory.unsharded_gradient_bytes = step.gradient_bytes;
    memory.group_shard_bytes = step.group_shard_bytes;
    memory.unsharded_bytes = step.pool_bytes;
    memory.unsharded_units = step.units;
  }
  memory.replicated_bytes = options.replicated_bytes;
  for (const UnitFootprint& unit : footprints) add(memory.replicated_bytes, unit.replicated_bytes);
  if (options.stored_on_host) memory.copy_bytes = bytes_of_copies(buffers, options);
  if (has_hook(options)) memory.hook_bytes = bytes_of_hooks(buffers, options);
  Bytes& where_stored = options.stored_on_host ? memory.host_bytes : memory.total_bytes;
  for (const Bytes part : {memory.shard_bytes, memory.optimizer_bytes, memory.gradient_bytes})
    add(where_stored, part);
  for (const UnitFootprint& unit : footprints) {
    where_stored -= unit.replicated_training_bytes;
    add(memory.total_bytes, unit.replicated_training_bytes);
  }
  for (const Bytes part : {memory.gradient_temp_bytes, memory.cast_bytes, memory.unsharded_bytes,
                           memory.copy_bytes, memory.replicated_bytes, memory.hook_bytes})
    add(memory.total_bytes, part);
  return memory;
}

}  // namespace

Footprint footprint_of(const ModelStructure& model, const std::vector<UnitPlan>& units,
                       const FootprintOptions& options) {
  Footprint result;
  result.mesh = options.mesh;
  CheckpointBytes checkpoint(options.mesh.mean_size());
  checkpoint.add_to(0, 0, static_cast<std::int64_t>(options.persistent_bytes));
  std::vector<std::vector<BufferPlan>> buffers;
  const std::vector<std::size_t> depths = depths_of(units);
  for (std::size_t i = 0; i < units.size(); ++i) {
    buffers.push_back(plan_buffers(model, units[i], options.optimizer, options.mesh, options.precision));
    result.units.push_back(footprint_of_unit(model, units[i], buffers.back(), options,
                                             gathers_of(units[i], depths[i], options)));
    add(result.gather_bytes, result.units.back().gather_bytes);
    add(result.reduce_bytes, result.units.back().reduce_bytes);
    add(result.average_bytes, result.units.back().average_bytes);
    for (const BufferPlan& buffer : buffers.back()) {
      if (buffer.trainable || !options.adapter_only) add_checkpoint(checkpoint, buffer, options.optimizer);
    }
  }
  result.memory = memory_of(units, buffers, result.units, options);
  checkpoint.finish(result);
  return result;
}

}  // namespace accel
