#include "train/checkpoint/load.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/files/json_text.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/run_state.hpp"
#include "ckpt/store/saved_parts.hpp"
#include "train/checkpoint/load_optimizer.hpp"
#include "train/checkpoint/rank_state.hpp"
#include "train/checkpoint/state_items.hpp"

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

/// Nothing if the file has no state of the rank's GPU. Earlier versions wrote neither the rank
/// nor the step.
std::optional<RandomState> read_random_state(const fs::path& file, int rank, std::int64_t step,
                                             at::Device device) {
  std::optional<RandomState> state;
  use_json_file(file, kMostJsonBytes, [&](const json& document) {
    if (document.value("rank", rank) != rank)
      throw_corrupt(fmt::format("is of rank {}", document.at("rank").get<int>()));
    if (document.value("step", step) != step)
      throw_corrupt(fmt::format("is of step {}, and the checkpoint of step {}",
                                document.at("step").get<std::int64_t>(), step));
    at::Tensor gpu;
    if (!device.is_cpu()) {
      const std::string name = random_state_name(device);
      if (!document.contains(name)) return;
      gpu = tensor_of_hex(document.at(name).get<std::string>());
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

/// Throws unless the optimizer, whose state was read from `part`, has done the steps of the run. Its file has
/// them as float32, as torch writes them.
void require_same_step(const LoadedOptimizer& loaded, const ckpt::RunState& state, const fs::path& part) {
  const std::int64_t found = loaded.parameter_steps;
  const std::int64_t expected = state.parameter_steps.value_or(std::min(found, state.optimizer_steps));
  if (static_cast<float>(found) == static_cast<float>(expected)) return;
  throw Error(ErrorKind::kCorrupt, fmt::format("'{}' is of an optimizer after {} steps, and {} says {}",
                                               part.string(), found, ckpt::kRunStateName, expected))
      .hint("the files are of different checkpoints");
}

/// Throws if the checkpoint has state of another kind of optimizer, or in another order of parameters.
void require_same_optimizer(const fs::path& directory, const ckpt::RunState& state,
                            const std::map<std::string, std::string>& settings) {
  const auto require_same = [&](const char* key, const char* why) {
    const auto before = state.settings.find(key);
    const auto now = settings.find(key);
    if (before == state.settings.end() || now == settings.end() || before->second == now->second) return;
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is of a run whose {} was {}, and it is {} now; {}",
                                               directory.string(), key, before->second, now->second, why))
        .hint("training.model.weights begins a run with the weights of a checkpoint alone");
  };
  require_same("training.optimizer.type", "an optimizer does not go on with the state of another");
  if (!state.power_sgd) return;
  for (const char* key : {"training.optimizer.groups", "training.optimizer.no_decay"})
    require_same(key, "the error feedback of PowerSGD lies in the order of the groups");
  // Earlier versions had no groups.
  const auto groups = settings.find("training.optimizer.groups");
  if (state.settings.contains("training.optimizer.groups") || groups == settings.end() ||
      groups->second == "[]")
    return;
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' is of a run without training.optimizer.groups, and the error feedback of "
                          "PowerSGD lies in their order",
                          directory.string()))
      .hint("leave the groups out, or begin with its weights: training.model.weights");
}

bool has_tensor_parallelism(const std::string& layout) {
  return layout.find(ckpt::kTensorParts) != std::string::npos;
}

/// Whether a rank goes on with the random numbers of the rank of its number. With tensor parallelism several
/// ranks draw the same ones, so that the ranks must be laid out as they were.
bool keeps_random_numbers(const ckpt::RunState& state, int world,
                          const std::map<std::string, std::string>& settings) {
  const auto layout_in = [](const std::map<std::string, std::string>& of) {
    const auto found = of.find(ckpt::kLayoutSetting);
    return found == of.end() ? std::string() : found->second;
  };
  const std::string then = layout_in(state.settings);
  const std::string now = layout_in(settings);
  return state.world_size == world &&
         (then == now || (!has_tensor_parallelism(then) && !has_tensor_parallelism(now)));
}

}  // namespace

void require_sound(const GradScaler::State& state, const fs::path& file) {
  const bool sound = std::isfinite(static_cast<float>(state.scale)) && state.scale >= config::kLeastScale &&
                     state.growth_tracker >= 0;
  if (sound) return;
  throw Error(ErrorKind::kCorrupt, fmt::format("'{}' has the loss scale {} and the growth tracker {}",
                                               file.string(), state.scale, state.growth_tracker));
}

fs::path part_to_resume(const fs::path& checkpoint, std::string_view stem, int index) {
  if (auto part = ckpt::saved_part(checkpoint, stem, index)) return *part;
  throw Error(ErrorKind::kMissing,
              fmt::format("'{}' has no '{}'", checkpoint.string(), ckpt::sharded_directory(stem, index)));
}

ckpt::RunState restore_what_ranks_have(const fs::path& directory, ShardedModel& model, ckpt::ReadSums* sums) {
  ckpt::RunState state = ckpt::read_run_state(directory / ckpt::kRunStateName);
  if (state.power_sgd) restore_power_sgd(*state.power_sgd, model);
  if (!fs::exists(directory / kRankStateDirectory)) return state;
  CheckpointTensors own(directory / kRankStateDirectory);
  own.note_in(sums);
  // The buffers of rank 0 are here if the checkpoint is of an adapter, whose model part has none.
  restore_buffers(own, model, 0);
  // The ranks of tensor parallelism have the same buffers.
  if (state.world_size == model.groups().mesh().size())
    restore_rank_state(own, model, model.groups().world().rank() - model.groups().place().tp);
  return state;
}

LoadedRun load_run(const fs::path& directory, ShardedModel& model, Optimizer& optimizer,
                   std::optional<GradScaler>& scaler, at::Device device, ckpt::ReadSums* sums,
                   const std::map<std::string, std::string>& settings) {
  LoadedRun run;
  require_same_optimizer(directory, ckpt::read_run_state(directory / ckpt::kRunStateName), settings);
  run.state = restore_what_ranks_have(directory, model, sums);
  const Mesh& mesh = model.groups().mesh();
  std::vector<fs::path> optimizer_parts;
  for (std::size_t i = 0; i < used_optimizers(optimizer).size(); ++i)
    optimizer_parts.push_back(part_to_resume(directory, ckpt::kOptimizerStem, static_cast<int>(i)));
  const KnownSteps known{run.state.optimizer_steps,
                         run.state.parameter_steps.value_or(run.state.optimizer_steps),
                         run.state.without_gradient};
  const LoadedOptimizer loaded =
      load_optimizer(optimizer_parts, known, optimizer, model.groups().place().shard, sums);
  const int parts = static_cast<int>(optimizer_parts.size());
  if (const auto more = ckpt::saved_part(directory, ckpt::kOptimizerStem, parts)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is of an optimizer that this run does not have", more->string()))
        .hint("resume with training.optimizer as it was, and with the frozen parameters of that run");
  }
  // Nothing is known where no parameter has state.
  if (loaded.parameter_steps > 0) require_same_step(loaded, run.state, optimizer_parts.front());
  const std::vector<std::string>& without = loaded.without;
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
    scaler->restore(read_scaler(scaler_file));
  } else if (scaler) {
    differs("the checkpoint has no loss scale; it starts again");
  }

  if (keeps_random_numbers(run.state, world, settings)) {
    run.random = read_random_state(directory / fmt::format("random_states_{}.json", rank), rank,
                                   run.state.step, device);
    if (!run.random) differs("the checkpoint has no random state of a GPU; random numbers are others");
    return run;
  }
  if (run.state.world_size == world) {
    differs(
        "tensor parallelism has other ranks than in the checkpoint; random numbers, such as those of "
        "dropout, are others");
    return run;
  }
  differs(
      fmt::format("the checkpoint is of {} ranks, and there are {} now; random numbers, such as those of "
                  "dropout, are others",
                  run.state.world_size, world));
  if (fs::exists(directory / kRankStateDirectory))
    differs(
        "the running statistics of each rank and the error feedback of PowerSGD start from those of rank 0 "
        "and from nothing");
  return run;
}

}  // namespace accel::train
