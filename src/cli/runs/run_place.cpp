#include "cli/runs/run_place.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/files/json_text.hpp"
#include "base/log.hpp"
#include "ckpt/store/model_assets.hpp"
#include "ckpt/store/resume_point.hpp"
#include "ckpt/store/run_checkpoints.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostConfigBytes = std::uint64_t{64} << 20;

/// "steps 10 and 20" or "no step".
std::string text_of_steps(const std::vector<std::int64_t>& steps) {
  if (steps.empty()) return "no step";
  return fmt::format("{} {}", steps.size() == 1 ? "step" : "steps", fmt::join(steps, ", "));
}

std::vector<std::int64_t> whole_steps(const ckpt::RunCheckpoints& checkpoints) {
  std::vector<std::int64_t> whole;
  for (const std::int64_t step : checkpoints.steps()) {
    if (!ckpt::why_not_whole(checkpoints.path_of(step), step)) whole.push_back(step);
  }
  return whole;
}

std::int64_t require_step(const ckpt::RunCheckpoints& checkpoints, const RunPlace& run, std::int64_t step) {
  const std::vector<std::int64_t> steps = checkpoints.steps();
  if (std::find(steps.begin(), steps.end(), step) == steps.end()) {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' holds no checkpoint of step {}, but of {}",
                                                 run.checkpoints.string(), step, text_of_steps(steps)));
  }
  if (const auto why = ckpt::why_not_whole(checkpoints.path_of(step), step)) {
    const std::string path = checkpoints.path_of(step).string();
    throw Error(ErrorKind::kMissing, fmt::format("'{}' is not complete: {}", path, *why))
        .hint("name this directory itself to take what is there");
  }
  return step;
}

std::int64_t require_best(const ckpt::RunCheckpoints& checkpoints, const RunPlace& run) {
  const ckpt::BestMetric metric = best_metric_of(run);
  const std::vector<std::int64_t> whole = whole_steps(checkpoints);
  if (const auto best = ckpt::best_checkpoint(checkpoints, whole, metric, run.metrics())) return *best;
  std::vector<std::int64_t> evaluated;
  for (const auto& [step, value] : ckpt::reported_values(run.metrics(), metric.key()))
    evaluated.push_back(step);
  const bool is_loss = metric.key() == "eval_loss";
  throw Error(
      ErrorKind::kMissing,
      fmt::format(
          "no complete checkpoint of '{}' has {}: it has complete checkpoints of {}, and '{}' has {} of "
          "{}",
          run.output.string(), is_loss ? "a held-out loss" : metric.key(), text_of_steps(whole),
          run.metrics().string(), is_loss ? "held-out losses" : metric.key(), text_of_steps(evaluated)))
      .hint("--step takes a checkpoint by its step; training.eval_every says when a run evaluates");
}

std::int64_t require_newest(const ckpt::RunCheckpoints& checkpoints, const RunPlace& run) {
  const ckpt::ResumePoint point = ckpt::newest_whole(checkpoints);
  for (const ckpt::BrokenCheckpoint& broken : point.skipped) {
    log::warn(fmt::format("'{}' is passed over, because it is not complete: {}",
                          checkpoints.path_of(broken.step).string(), broken.why));
  }
  if (point.step) return *point.step;
  throw Error(ErrorKind::kMissing, fmt::format("'{}' holds no complete checkpoint", run.checkpoints.string()))
      .hint("name one of its directories itself to take what is there");
}

}  // namespace

RunPlace place_of_run(const std::string& path) {
  const fs::path given = fs::path(path).has_filename() ? fs::path(path) : fs::path(path).parent_path();
  if (!fs::is_directory(given))
    throw Error(ErrorKind::kMissing, fmt::format("'{}' is not a directory", path));
  if (fs::is_directory(given / "checkpoints")) return {given / "checkpoints", given};
  if (!ckpt::RunCheckpoints(given).steps().empty()) {
    // The directory above as the path names it: `checkpoints` may be a link.
    fs::path absolute = fs::absolute(given).lexically_normal();
    if (!absolute.has_filename()) absolute = absolute.parent_path();
    return {given, absolute.parent_path()};
  }
  throw Error(ErrorKind::kMissing, fmt::format("'{}' holds no checkpoints of a run", path))
      .hint("name the output_dir of a training, or its directory checkpoints");
}

bool is_run(const fs::path& path) {
  if (!fs::is_directory(path / "checkpoints")) return false;
  const ckpt::RunCheckpoints checkpoints(path / "checkpoints");
  const std::vector<std::int64_t> steps = checkpoints.steps();
  return std::any_of(steps.begin(), steps.end(),
                     [&](std::int64_t step) { return checkpoints.is_of_training(step); });
}

ckpt::BestMetric best_metric_of(const RunPlace& run) {
  const fs::path config = run.output / "config.resolved.json";
  std::string name = "loss";
  if (!fs::exists(config)) return ckpt::BestMetric(name);
  use_json_file(config, kMostConfigBytes, [&](const nlohmann::json& document) {
    name = document.value(nlohmann::json::json_pointer("/training/best_metric"), name);
  });
  return ckpt::BestMetric(name);
}

fs::path chosen_checkpoint(const RunPlace& run, const CheckpointChoice& choice) {
  const ckpt::RunCheckpoints checkpoints(run.checkpoints);
  if (choice.step) return checkpoints.path_of(require_step(checkpoints, run, *choice.step));
  return checkpoints.path_of(choice.best ? require_best(checkpoints, run) : require_newest(checkpoints, run));
}

std::vector<fs::path> assets_of_run(const RunPlace& run, const fs::path& checkpoint) {
  const fs::path config = run.output / "config.resolved.json";
  if (!fs::exists(config)) return {};
  fs::path directory;
  fs::path weights;
  fs::path model;
  bool is_adapter = false;
  use_json_file(config, kMostConfigBytes, [&](const nlohmann::json& document) {
    const auto text = [&](const char* pointer) {
      const nlohmann::json::json_pointer place(pointer);
      return document.contains(place) && document.at(place).is_string()
                 ? document.at(place).get<std::string>()
                 : std::string();
    };
    directory = text("/launch/directory");
    weights = text("/training/model/weights");
    model = text("/training/model/path");
    is_adapter = document.value(nlohmann::json::json_pointer("/training/checkpoint/adapter_only"), false);
  });
  // A relative path of another version of accel, which has not written the directory, could lead to the files
  // of another model.
  if (model.is_relative()) model = directory.empty() ? fs::path() : directory / model;
  if (is_adapter) return ckpt::adapter_assets(checkpoint, model);
  if (!weights.empty() && weights.is_relative()) {
    if (directory.empty()) {
      log::warn(
          fmt::format("the run has the relative path '{}' of another version of accel, so no configuration "
                      "and no tokenizer are copied; --copy-assets takes those of a directory",
                      weights.string()));
      return {};
    }
    weights = directory / weights;
  }
  if (!weights.empty() && !fs::exists(weights)) {
    log::warn(
        fmt::format("'{}', which the run has as training.model.weights, is not there, so no configuration "
                    "and no tokenizer are copied; --copy-assets takes those of a directory",
                    weights.string()));
  }
  return ckpt::assets_beside(weights);
}

}  // namespace accel::cli
