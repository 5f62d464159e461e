#include "train/checkpoint/load_optimizer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "plan/flat_layout.hpp"
#include "train/model/checkpoint_tensors.hpp"

namespace accel::train {
namespace {

namespace fs = std::filesystem;

/// Reads the state of an optimizer, parameter by parameter.
class OptimizerReader {
 public:
  OptimizerReader(const fs::path& path, ckpt::ReadSums* sums)
      : tensors_(path, CheckpointTensors::Part::kOptimizer) {
    tensors_.note_in(sums);
  }

  /// Fills the moments of `state` and returns the steps of its parameters.
  std::vector<std::int64_t> read(const AdamW::State& state, int shard) {
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
      read(*parameter.exp_avg, piece, state.exp_avg);
      read(*parameter.exp_avg_sq, piece, state.exp_avg_sq);
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
    const Tensor* exp_avg = nullptr;
    const Tensor* exp_avg_sq = nullptr;
  };

  /// All null if the optimizer has no state of the parameter, which never had a gradient then.
  Found find(const ParameterSpec& spec) {
    for (const std::string& fqn : spec.fqns) {
      const std::string prefix = "state." + fqn + ".";
      const Found found{tensors_.find(prefix + "step"), tensors_.find(prefix + "exp_avg"),
                        tensors_.find(prefix + "exp_avg_sq")};
      if (found.step == nullptr && found.exp_avg == nullptr && found.exp_avg_sq == nullptr) continue;
      for (const auto& [tensor, name] : {std::pair(found.step, "step"), std::pair(found.exp_avg, "exp_avg"),
                                         std::pair(found.exp_avg_sq, "exp_avg_sq")}) {
        if (tensor == nullptr) {
          throw Error(ErrorKind::kMissing,
                      fmt::format("'{}' has no '{}{}'", tensors_.path().string(), prefix, name));
        }
        if (name != std::string_view("step") && tensor->shape != spec.shape) {
          throw Error(ErrorKind::kUsage,
                      fmt::format("'{}': '{}{}' is {}, the model's parameter is {}", tensors_.path().string(),
                                  prefix, name, ckpt::to_string(tensor->shape), ckpt::to_string(spec.shape)));
        }
      }
      return found;
    }
    return {};
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

  CheckpointTensors tensors_;
  std::vector<std::string> without_;
};

}  // namespace

LoadedOptimizer load_optimizer(const fs::path& path, std::optional<std::int64_t> steps, AdamW& optimizer,
                               int shard, ckpt::ReadSums* sums) {
  OptimizerReader reader(path, sums);
  LoadedOptimizer loaded;
  std::vector<std::vector<std::int64_t>> parameter_steps;
  for (const AdamW::State& state : optimizer.states()) {
    parameter_steps.push_back(reader.read(state, shard));
    for (const std::int64_t of_parameter : parameter_steps.back())
      loaded.parameter_steps = std::max(loaded.parameter_steps, of_parameter);
  }
  loaded.steps = steps.value_or(loaded.parameter_steps);
  optimizer.go_on_from(loaded.steps, std::move(parameter_steps));
  loaded.without = reader.without();
  const std::vector<std::string> unused = reader.unused();
  if (unused.empty()) return loaded;
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' has state of {} tensors that the optimizer does not have, among them '{}'",
                          path.string(), unused.size(), unused.front()))
      .hint("resume with the model and the frozen parameters of the run that wrote the checkpoint");
}

}  // namespace accel::train
