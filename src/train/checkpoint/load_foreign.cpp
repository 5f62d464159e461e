#include "train/checkpoint/load_foreign.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/saved_parts.hpp"
#include "train/checkpoint/load_optimizer.hpp"
#include "train/checkpoint/state_items.hpp"

namespace accel::train {
namespace {

namespace fs = std::filesystem;

/// The number `name` of a dict that torch.save wrote.
double number_in(ckpt::Checkpoint& checkpoint, std::string_view name) {
  for (std::size_t i = 0; i < checkpoint.objects().size(); ++i) {
    if (checkpoint.objects()[i].name != name) continue;
    const ckpt::pickle::Value value = checkpoint.read_object(i);
    if (const auto* number = value.get<double>()) return *number;
    if (const auto* number = value.get<std::int64_t>()) return static_cast<double>(*number);
  }
  throw Error(ErrorKind::kCorrupt, fmt::format("'{}' has no number '{}'", checkpoint.path().string(), name));
}

void load_scaler(const fs::path& file, GradScaler& scaler) {
  const std::unique_ptr<ckpt::Checkpoint> checkpoint = ckpt::open_checkpoint(file);
  const GradScaler::State state{number_in(*checkpoint, "scale"),
                                static_cast<std::int64_t>(number_in(*checkpoint, "_growth_tracker"))};
  require_sound(state, file);
  scaler.restore(state);
}

/// The files of Accelerator.save_state that hold state of Python alone.
std::vector<std::string> unread_in(const fs::path& checkpoint) {
  static constexpr std::array<std::string_view, 5> kStems = {"random_states", "sampler", "dl_state_dict",
                                                             "scheduler", "custom_checkpoint"};
  std::vector<std::string> names;
  for (const std::string& name : names_in(checkpoint)) {
    if (std::any_of(kStems.begin(), kStems.end(),
                    [&](std::string_view stem) { return name.starts_with(stem); }))
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

bool is_foreign(const fs::path& checkpoint) {
  return !fs::exists(checkpoint / ckpt::kRunStateName) && !fs::exists(checkpoint / ckpt::kManifestName);
}

fs::path foreign_part(const fs::path& checkpoint, std::string_view stem) {
  return ckpt::saved_part(checkpoint, stem).value_or(checkpoint);
}

LoadedRun load_foreign_run(const fs::path& checkpoint, ShardedModel& model, Optimizer& optimizer,
                           std::optional<GradScaler>& scaler) {
  LoadedRun run;
  std::vector<fs::path> parts = {foreign_part(checkpoint, ckpt::kOptimizerStem)};
  // Accelerate has a part for each optimizer; torch's get_optimizer_state_dict has one for all.
  for (int i = 1; auto part = ckpt::saved_part(checkpoint, ckpt::kOptimizerStem, i); ++i)
    parts.push_back(std::move(*part));
  if (const std::size_t used = used_optimizers(optimizer).size(); parts.size() > 1 && parts.size() != used) {
    throw Error(ErrorKind::kUsage, fmt::format("'{}' has {} optimizers, and training.optimizer asks for {}",
                                               checkpoint.string(), parts.size(), used));
  }
  const LoadedOptimizer loaded = load_optimizer(parts, {}, optimizer, model.groups().place().shard);
  run.state.step = loaded.steps;
  run.state.optimizer_steps = loaded.steps;
  const auto differs = [&](std::string what) { run.differences.push_back(std::move(what)); };
  if (loaded.steps == 0) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' has no step of the optimizer, so there is nothing to go on from",
                            checkpoint.string()))
        .hint("for weights alone there is training.model.weights");
  }
  differs(fmt::format("another program wrote the checkpoint; its step is that of the optimizer, {}",
                      loaded.steps));
  if (!loaded.without.empty()) {
    differs(
        fmt::format("{} parameters have no state of the optimizer in the checkpoint and begin without "
                    "one; the first is '{}'",
                    loaded.without.size(), loaded.without.front()));
  }
  if (scaler && fs::exists(checkpoint / "scaler.pt")) {
    load_scaler(checkpoint / "scaler.pt", *scaler);
  } else if (scaler) {
    differs("the checkpoint has no loss scale; it starts again");
  }
  if (const auto unread = unread_in(checkpoint); !unread.empty()) {
    differs(
        fmt::format("{} {} not read: the schedule follows from the step and the settings, and the random "
                    "numbers of Python are its own",
                    fmt::join(unread, ", "), unread.size() == 1 ? "is" : "are"));
  }
  return run;
}

}  // namespace accel::train
