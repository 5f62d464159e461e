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
#include "plan/flat_layout.hpp"
#include "weights/checkpoint_tensors.hpp"

namespace accel::train {
namespace {

namespace fs = std::filesystem;

/// Reads the state of an optimizer, parameter by parameter.
class OptimizerReader {
 public:
  OptimizerReader(const fs::path& path, const OptimizerPlan& plan, ckpt::ReadSums* sums)
      : plan_(plan), tensors_(path, CheckpointTensors::Part::kOptimizer) {
    tensors_.note_in(sums);
  }

  /// Fills the tensors of `state` and returns the steps of its parameters.
  std::vector<std::int64_t> read(const Optimizer::State& state, int shard) {
    const at::NoGradGuard no_grad;
    const FlatLayout& layout = state.buffer->layout();
    std::vector<std::int64_t> steps;
    std::vector<Found> found;
    for (const FlatParameter& parameter : layout.parameters) {
      found.push_back(find(parameter.spec));
      steps.push_back(found.back().step == nullptr ? 0 : steps_of(*found.back().step, parameter.spec));
      if (found.back().step == nullptr) without_.push_back(parameter.spec.fqns.front());
    }
    for (const ShardPiece& piece : pieces_of(layout, layout.is_replicated() ? 0 : shard)) {
      const Found& parameter = found[piece.parameter];
      if (parameter.step == nullptr) continue;
      for (std::size_t i = 0; i < state.tensors.size(); ++i)
        read(*parameter.tensors[i], piece, state.tensors[i]);
    }
    return steps;
  }

  [[nodiscard]] std::vector<std::string> unused() const { return tensors_.unused(); }
  /// The parameters that have no state in the checkpoint.
  [[nodiscard]] const std::vector<std::string>& without() const { return without_; }

 private:
  using Tensor = CheckpointTensors::Tensor;
  struct Found {
    const Tensor* step = nullptr;
    std::vector<const Tensor*> tensors;  ///< Those of the plan.
  };

  /// Empty if the optimizer has no state of the parameter, which never had a gradient then.
  Found find(const ParameterSpec& spec) {
    for (const std::string& fqn : spec.fqns) {
      const std::string prefix = "state." + fqn + ".";
      Found found{tensors_.find(prefix + "step"), {}};
      bool has_any = found.step != nullptr;
      for (const OptimizerTensor& tensor : plan_.tensors) {
        found.tensors.push_back(tensors_.find(prefix + std::string(tensor.name)));
        has_any |= found.tensors.back() != nullptr;
      }
      if (!has_any) continue;
      if (found.step == nullptr) fail_missing(prefix + "step");
      for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
        const std::string name = prefix + std::string(plan_.tensors[i].name);
        const Tensor* const tensor = found.tensors[i];
        if (tensor == nullptr) fail_missing(name);
        if (tensor->shape != spec.shape) {
          throw Error(ErrorKind::kUsage,
                      fmt::format("'{}': '{}' is {}, the model's parameter is {}", tensors_.path().string(),
                                  name, ckpt::to_string(tensor->shape), ckpt::to_string(spec.shape)));
        }
      }
      return found;
    }
    return {};
  }

  [[noreturn]] void fail_missing(const std::string& name) const {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' has no '{}'", tensors_.path().string(), name));
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

  void read(const Tensor& tensor, const ShardPiece& piece, const at::Tensor& flat) {
    at::Tensor out = flat.narrow(0, piece.shard_offset, piece.in_parameter.size());
    const auto dtype = ckpt::dtype_of_torch_name(c10::getDtypeNames(out.scalar_type()).first);
    if (!dtype || !can_read_as(tensor.dtype, *dtype)) {
      throw Error(ErrorKind::kUsage, fmt::format("'{}' holds moments of dtype {}", tensors_.path().string(),
                                                 ckpt::torch_name(tensor.dtype)));
    }
    at::Tensor host =
        out.is_cpu() ? out : at::empty(out.sizes(), at::TensorOptions().dtype(out.scalar_type()));
    tensors_.read(tensor, *dtype, piece.in_parameter.begin,
                  {static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()});
    if (!out.is_cpu()) out.copy_(host);
  }

  const OptimizerPlan& plan_;
  CheckpointTensors tensors_;
  std::vector<std::string> without_;
};

}  // namespace

LoadedOptimizer load_optimizer(const fs::path& path, std::optional<std::int64_t> steps, Optimizer& optimizer,
                               int shard, ckpt::ReadSums* sums) {
  OptimizerReader reader(path, optimizer.plan(), sums);
  LoadedOptimizer loaded;
  std::vector<std::vector<std::int64_t>> parameter_steps;
  for (const Optimizer::State& state : optimizer.states()) {
    parameter_steps.push_back(reader.read(state, shard));
    for (const std::int64_t count : parameter_steps.back())
      loaded.parameter_steps = std::max(loaded.parameter_steps, count);
  }
  loaded.steps = steps.value_or(loaded.parameter_steps);
  optimizer.restore_steps(loaded.steps, std::move(parameter_steps));
  loaded.without = reader.without();
  const std::vector<std::string> unused = reader.unused();
  if (unused.empty()) return loaded;
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' has state of {} tensors that the optimizer does not have, among them '{}'",
                          path.string(), unused.size(), unused.front()))
      .hint("resume with the model and the frozen parameters of the run that wrote the checkpoint");
}

}  // namespace accel::train
