#include "train/checkpoint/load_optimizer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "plan/layout/flat_layout.hpp"
#include "train/checkpoint/state_items.hpp"
#include "weights/checkpoint_tensors.hpp"

namespace accel::train {
namespace {

namespace fs = std::filesystem;

/// Reads the state of an optimizer, parameter by parameter.
class OptimizerReader {
 public:
  OptimizerReader(const fs::path& path, const KnownSteps& known, ckpt::ReadSums* sums)
      : tensors_(path, CheckpointTensors::Part::kOptimizer), known_(known) {
    tensors_.note_in(sums);
  }

  /// Fills the tensors of `state` and returns the steps of its parameters.
  std::vector<std::int64_t> read(const OptimizerState& state, const OptimizerGroup& group, int shard) {
    const at::NoGradGuard no_grad;
    const FlatLayout& layout = state.buffer->layout();
    std::vector<std::int64_t> steps;
    std::vector<Found> found;
    for (std::size_t i = state.range.first; i < state.range.end; ++i) {
      const ParameterSpec& spec = layout.parameters[i].spec;
      found.push_back(find(spec, group));
      const Found& parameter = found.back();
      if (!parameter.is_there) without_.push_back(spec.fqns.front());
      steps.push_back(!parameter.is_there         ? 0
                      : parameter.step == nullptr ? uncounted_steps(spec)
                                                  : steps_of(*parameter.step, spec));
    }
    for (const ShardPiece& piece : pieces_of(layout, layout.is_replicated() ? 0 : shard)) {
      if (!state.has(piece.parameter)) continue;
      const Found& parameter = found[piece.parameter - state.range.first];
      if (!parameter.is_there) continue;
      for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        if (!group.tensors[i].is_cut()) continue;
        const std::int64_t each = group.tensors[i].elems_each();
        const ElementRange range = {piece.in_parameter.begin / each, piece.in_parameter.end / each};
        const std::int64_t begin = (piece.shard_offset - state.in_shard.begin) / each;
        const ParameterSpec& spec = layout.parameters[piece.parameter].spec;
        if (!spec.part) {
          read(*parameter.tensors[i], range, state.tensors[i], begin);
          continue;
        }
        for (const PartRun& run : runs_of_part(spec.whole_shape(), *spec.part, range.begin, range.end)) {
          read(*parameter.tensors[i], {run.in_whole, run.in_whole + run.count}, state.tensors[i],
               begin + run.in_part - range.begin);
        }
      }
    }
    for (std::size_t at = state.range.first; at < state.range.end; ++at) {
      const Found& parameter = found[at - state.range.first];
      for (std::size_t i = 0; parameter.is_there && i < state.tensors.size(); ++i) {
        const StateTensor& tensor = group.tensors[i];
        if (tensor.is_cut()) continue;
        read(*parameter.tensors[i], {0, tensor.numel_for(layout.parameters[at].spec.shape)}, state.tensors[i],
             offset_on_rank(tensor, layout, state.range, at));
      }
    }
    return steps;
  }

  [[nodiscard]] std::vector<std::string> unused() const { return tensors_.unused(); }
  /// The parameters that have no state in the checkpoint.
  [[nodiscard]] const std::vector<std::string>& without() const { return without_; }

 private:
  using Tensor = CheckpointTensors::Tensor;
  struct Found {
    bool is_there = false;
    const Tensor* step = nullptr;        ///< Null if the optimizer does not count steps.
    std::vector<const Tensor*> tensors;  ///< Those of the group.
  };

  /// What the checkpoint has of a parameter; nothing if the parameter never had a gradient.
  Found find(const ParameterSpec& spec, const OptimizerGroup& group) {
    // An optimizer that stores nothing has state of every parameter.
    if (group.tensors.empty() && !group.counts_steps) return {.is_there = true};
    for (const std::string& fqn : spec.fqns) {
      const std::string prefix = "state." + fqn + ".";
      Found found;
      if (group.counts_steps) found.step = tensors_.find(prefix + "step");
      found.is_there = found.step != nullptr;
      for (const StateTensor& tensor : group.tensors) {
        found.tensors.push_back(tensors_.find(prefix + tensor.full_name()));
        found.is_there |= found.tensors.back() != nullptr;
      }
      if (!found.is_there) continue;
      if (group.counts_steps && found.step == nullptr) fail_missing(prefix + "step");
      for (std::size_t i = 0; i < group.tensors.size(); ++i) {
        const std::string name = prefix + group.tensors[i].full_name();
        const Tensor* const tensor = found.tensors[i];
        if (tensor == nullptr) fail_missing(name);
        const std::vector<std::int64_t> shape = spec.whole_shape();
        if (tensor->shape != group.tensors[i].shape_for(shape)) {
          throw Error(ErrorKind::kUsage,
                      fmt::format("'{}': '{}' is {}, the model's parameter is {}", tensors_.path().string(),
                                  name, ckpt::to_string(tensor->shape), ckpt::to_string(shape)));
        }
      }
      return found;
    }
    return {};
  }

  [[noreturn]] void fail_missing(const std::string& name) const {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' has no '{}'", tensors_.path().string(), name))
        .hint("is it of another training.optimizer?");
  }

  [[nodiscard]] std::int64_t uncounted_steps(const ParameterSpec& spec) const {
    const std::vector<std::string>& unused = known_.without_gradient;
    return std::find(unused.begin(), unused.end(), spec.fqns.front()) == unused.end() ? known_.uncounted : 0;
  }

  std::int64_t steps_of(const Tensor& tensor, const ParameterSpec& spec) {
    float steps = -1;
    if (tensor.shape.empty() && can_read_as(tensor.dtype, ckpt::DType::kFloat32))
      tensors_.read(tensor, ckpt::DType::kFloat32, 0, std::as_writable_bytes(std::span(&steps, 1)));
    constexpr float kMostSteps = 1e15F;
    if (steps >= 0 && steps <= kMostSteps && steps == std::floor(steps))
      return static_cast<std::int64_t>(steps);
    throw Error(ErrorKind::kCorrupt, fmt::format("'{}': 'state.{}.step' is not a number of steps",
                                                 tensors_.path().string(), spec.fqns.front()));
  }

  /// Fills `flat` from `begin` on with the elements `range` of `tensor`.
  void read(const Tensor& tensor, const ElementRange& range, const at::Tensor& flat, std::int64_t begin) {
    at::Tensor out = flat.narrow(0, begin, range.size());
    const auto dtype = ckpt::dtype_of_torch_name(c10::getDtypeNames(out.scalar_type()).first);
    if (!dtype || !can_read_as(tensor.dtype, *dtype)) {
      throw Error(ErrorKind::kUsage, fmt::format("'{}' holds moments of dtype {}", tensors_.path().string(),
                                                 ckpt::torch_name(tensor.dtype)));
    }
    at::Tensor host =
        out.is_cpu() ? out : at::empty(out.sizes(), at::TensorOptions().dtype(out.scalar_type()));
    tensors_.read(tensor, *dtype, range.begin,
                  {static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()});
    if (!out.is_cpu()) out.copy_(host);
  }

  CheckpointTensors tensors_;
  const KnownSteps& known_;
  std::vector<std::string> without_;
};

}  // namespace

LoadedOptimizer load_optimizer(const std::vector<fs::path>& paths, const KnownSteps& known,
                               Optimizer& optimizer, int shard, ckpt::ReadSums* sums) {
  const std::vector<std::size_t> used = used_optimizers(optimizer);
  LoadedOptimizer loaded;
  std::vector<std::vector<std::int64_t>> parameter_steps(optimizer.states().size());
  for (std::size_t part = 0; part < paths.size(); ++part) {
    OptimizerReader reader(paths[part], known, sums);
    for (std::size_t i = 0; i < optimizer.states().size(); ++i) {
      const OptimizerState& state = optimizer.states()[i];
      const OptimizerGroup& group = optimizer.plan().groups()[state.range.group];
      if (paths.size() > 1 && group.optimizer != used.at(part)) continue;
      parameter_steps[i] = reader.read(state, group, shard);
      for (const std::int64_t count : parameter_steps[i])
        loaded.parameter_steps = std::max(loaded.parameter_steps, count);
    }
    loaded.without.insert(loaded.without.end(), reader.without().begin(), reader.without().end());
    const std::vector<std::string> unused = reader.unused();
    if (unused.empty()) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' has state of {} tensors that the optimizer does not have, among them '{}'",
                            paths[part].string(), unused.size(), unused.front()))
        .hint(
            "resume with the model, the optimizer and the frozen parameters of the run that wrote the "
            "checkpoint");
  }
  loaded.steps = known.optimizer.value_or(loaded.parameter_steps);
  optimizer.restore_steps(loaded.steps, std::move(parameter_steps));
  return loaded;
}

}  // namespace accel::train
