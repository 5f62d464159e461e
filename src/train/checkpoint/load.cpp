#include "train/checkpoint/load.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/files/json_text.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "train/checkpoint/rank_state.hpp"

namespace accel::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMostJsonBytes = 16 << 20;

at::Tensor tensor_of_hex(const std::string& text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    throw_corrupt(fmt::format("has the character '{}' where a hexadecimal digit belongs", c));
  };
  if (text.size() % 2 != 0) throw_corrupt("has an odd number of hexadecimal digits");
  at::Tensor bytes =
      at::empty({static_cast<std::int64_t>(text.size() / 2)}, at::TensorOptions().dtype(at::kByte));
  for (std::size_t i = 0; i < text.size(); i += 2)
    bytes.mutable_data_ptr<std::uint8_t>()[i / 2] =
        static_cast<std::uint8_t>(digit(text[i]) * 16 + digit(text[i + 1]));
  return bytes;
}

/// Nothing if the file has no state of a GPU and the rank needs one.
std::optional<RandomState> read_random_state(const fs::path& file, at::Device device) {
  std::optional<RandomState> state;
  use_json_file(file, kMostJsonBytes, [&](const json& document) {
    at::Tensor gpu;
    if (!device.is_cpu()) {
      if (!document.contains("cuda")) return;
      gpu = tensor_of_hex(document.at("cuda").get<std::string>());
    }
    state = RandomState::from(tensor_of_hex(document.at("cpu").get<std::string>()), device, std::move(gpu));
  });
  return state;
}

GradScaler::State read_scaler(const fs::path& file) {
  GradScaler::State state;
  use_json_file(file, kMostJsonBytes, [&](const json& document) {
    state = {document.at("scale").get<double>(), document.at("_growth_tracker").get<std::int64_t>()};
    const bool sound = std::isfinite(static_cast<float>(state.scale)) && state.scale >= config::kLeastScale &&
                       state.growth_tracker >= 0;
    if (sound) return;
    throw_corrupt(
        fmt::format("has the loss scale {} and the growth tracker {}", state.scale, state.growth_tracker));
  });
  return state;
}

/// Reads the state of an optimizer, parameter by parameter.
class OptimizerReader {
 public:
  explicit OptimizerReader(const fs::path& directory) : tensors_(directory) {}

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

/// Returns the parameters that have no state in the checkpoint.
std::vector<std::string> load_optimizer(const fs::path& directory, std::int64_t steps, AdamW& optimizer,
                                        int shard) {
  OptimizerReader reader(directory);
  std::vector<std::vector<std::int64_t>> parameter_steps;
  for (const AdamW::State& state : optimizer.states()) parameter_steps.push_back(reader.read(state, shard));
  optimizer.go_on_from(steps, std::move(parameter_steps));
  const std::vector<std::string> unused = reader.unused();
  if (unused.empty()) return reader.without();
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' has state of {} tensors that the optimizer does not have, among them '{}'",
                          directory.string(), unused.size(), unused.front()))
      .hint("resume with the model and the frozen parameters of the run that wrote the checkpoint");
}

}  // namespace

LoadedRun load_run(const fs::path& directory, ShardedModel& model, AdamW& optimizer,
                   std::optional<GradScaler>& scaler, at::Device device) {
  LoadedRun run;
  run.state = ckpt::read_run_state(directory / ckpt::kRunStateName);
  const Mesh& mesh = model.groups().mesh();
  const std::vector<std::string> without =
      load_optimizer(directory / ckpt::sharded_directory(ckpt::kOptimizerStem, 0), run.state.optimizer_steps,
                     optimizer, model.groups().place().shard);
  const int rank = model.groups().world().rank();
  const int world = mesh.size();
  const auto differs = [&](std::string what) { run.differences.push_back(std::move(what)); };

  if (!without.empty()) {
    differs(fmt::format(
        "{} parameters have no state of the optimizer in the checkpoint, as if they had been frozen, "
        "and begin without one; the first is '{}'",
        without.size(), without.front()));
  }
  const fs::path scaler_file = directory / "scaler.json";
  if (scaler && fs::exists(scaler_file)) {
    scaler->go_on_from(read_scaler(scaler_file));
  } else if (scaler) {
    differs("the checkpoint has no loss scale; it starts again");
  }

  if (run.state.power_sgd) restore_power_sgd(*run.state.power_sgd, model);
  const fs::path own = directory / kRankStateDirectory;
  if (run.state.world_size == world) {
    run.random = read_random_state(directory / fmt::format("random_states_{}.json", rank), device);
    if (!run.random) differs("the checkpoint has no random state of a GPU; random numbers are others");
    if (fs::exists(own)) {
      CheckpointTensors tensors(own);
      restore_rank_state(tensors, model, rank);
    }
    return run;
  }
  differs(
      fmt::format("the checkpoint is of {} ranks, and there are {} now; random numbers, such as those of "
                  "dropout, are others",
                  run.state.world_size, world));
  if (fs::exists(own))
    differs(
        "the running statistics of each rank and the error feedback of PowerSGD start from those of rank 0 "
        "and from nothing");
  return run;
}

}  // namespace accel::train
