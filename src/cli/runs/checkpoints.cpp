#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "ckpt/store/best_checkpoint.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/resume_point.hpp"
#include "ckpt/store/run_checkpoints.hpp"
#include "ckpt/store/run_lock.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"
#include "cli/runs/run_place.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct CheckpointsOptions {
  std::string path;
  std::vector<std::string> steps;  ///< The steps to delete, as given.
  std::int64_t keep_last = 0;      ///< 0 if the flag is not given.
  bool force = false;
};

/// One checkpoint of a run.
struct Listed {
  std::int64_t step = 0;
  std::optional<std::string> why_not_whole;
  std::uint64_t bytes = 0;  ///< The sizes of all regular files.
  int ranks = 0;            ///< The number of ranks that wrote it; 0 if its manifest cannot be read.
  std::time_t written = 0;
};

std::uint64_t bytes_below(const fs::path& directory) {
  std::uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

Listed listed(const fs::path& directory, std::int64_t step) {
  Listed listed{step, {}, bytes_below(directory), 0, 0};
  try {
    listed.why_not_whole = ckpt::why_not_whole(directory, step);
  } catch (const Error& error) {
    listed.why_not_whole = error.message();
  }
  const fs::path manifest = directory / ckpt::kManifestName;
  struct stat info {};
  if (::stat((fs::exists(manifest) ? manifest : directory).c_str(), &info) == 0)
    listed.written = info.st_mtim.tv_sec;
  try {
    listed.ranks = ckpt::parse_manifest(manifest).world_size;
  } catch (const Error&) {
    // why_not_whole says it.
  }
  return listed;
}

std::vector<Listed> list(const ckpt::RunCheckpoints& checkpoints) {
  std::vector<Listed> all;
  for (const std::int64_t step : checkpoints.steps()) {
    const fs::path path = checkpoints.path_of(step);
    try {
      all.push_back(listed(path, step));
    } catch (const fs::filesystem_error&) {
      if (fs::exists(path)) throw;
      // A run has removed it meanwhile.
    }
  }
  return all;
}

/// What the run says of its steps.
struct Reported {
  std::map<std::int64_t, double> training;  ///< The mean loss of the steps since the record before.
  std::map<std::int64_t, double> held_out;  ///< The loss of the weights of a step.
  ckpt::BestMetric metric = ckpt::BestMetric("loss");
  std::optional<std::int64_t> best;  ///< The step of the best checkpoint, if one has a value.
};

/// The losses are shown beside the checkpoints, which can be listed without them.
Reported reported_of(const std::vector<Listed>& all, const RunPlace& place) {
  const ckpt::RunCheckpoints checkpoints(place.checkpoints);
  std::vector<std::int64_t> whole;
  for (const Listed& one : all) {
    if (!one.why_not_whole) whole.push_back(one.step);
  }
  Reported reported;
  try {
    reported.metric = best_metric_of(place);
    reported.training = ckpt::reported_values(place.metrics(), "loss");
    reported.held_out = ckpt::reported_values(place.metrics(), "eval_loss");
    // A record of an evaluation may be lost, and the checkpoint of its step has the value nevertheless.
    const ckpt::BestMetric loss("loss");
    for (const auto& [step, value] : ckpt::checkpoint_values(checkpoints, whole, loss, place.metrics()))
      reported.held_out[step] = value;
    reported.best = ckpt::best_checkpoint(checkpoints, whole, reported.metric, place.metrics());
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) throw;
    log::warn(error.message());
  }
  return reported;
}

/// The training loss of the last record up to `step`, if there is one.
std::optional<double> training_loss(const Reported& reported, std::int64_t step) {
  const auto behind = reported.training.upper_bound(step);
  return behind == reported.training.begin() ? std::nullopt : std::optional(std::prev(behind)->second);
}

std::optional<double> held_out_loss(const Reported& reported, std::int64_t step) {
  const auto found = reported.held_out.find(step);
  return found == reported.held_out.end() ? std::nullopt : std::optional(found->second);
}

void print_json(const std::vector<Listed>& all, const RunPlace& place, Results& out) {
  const Reported reported = reported_of(all, place);
  const auto or_null = [](const std::optional<double>& loss) { return loss ? Json(*loss) : Json(); };
  Json document{{"path", place.checkpoints.string()}, {"checkpoints", Json::array()}};
  for (const Listed& one : all) {
    Json entry{{"step", one.step}, {"bytes", one.bytes}, {"ranks", one.ranks}, {"written", one.written}};
    entry["whole"] = !one.why_not_whole.has_value();
    if (one.why_not_whole) entry["why"] = *one.why_not_whole;
    entry["loss"] = or_null(training_loss(reported, one.step));
    entry["eval_loss"] = or_null(held_out_loss(reported, one.step));
    entry["best"] = reported.best == one.step;
    document["checkpoints"].push_back(std::move(entry));
  }
  out.json(document);
}

std::string state_of(const Listed& one, const std::string& best) {
  if (one.why_not_whole) return "not whole: " + *one.why_not_whole;
  return best.empty() ? "whole" : "whole, best " + best;
}

void print_text(const std::vector<Listed>& all, const RunPlace& place, Results& out) {
  if (all.empty()) return out.line(fmt::format("{}: no checkpoints", place.checkpoints.string()));
  const Reported reported = reported_of(all, place);
  const std::string what = reported.metric.key() == "eval_loss" ? "held-out loss" : reported.metric.key();
  const auto text_of = [](const std::optional<double>& loss) {
    return loss ? fmt::format("{:.4f}", *loss) : std::string();
  };
  std::vector<std::vector<std::string>> rows = {
      {"STEP", "SIZE", "RANKS", "WRITTEN", "LOSS", "HELD-OUT", "STATE"}};
  for (const Listed& one : all) {
    rows.push_back({std::to_string(one.step), format_bytes(one.bytes),
                    one.ranks == 0 ? "" : std::to_string(one.ranks), format_time(one.written),
                    text_of(training_loss(reported, one.step)), text_of(held_out_loss(reported, one.step)),
                    state_of(one, reported.best == one.step ? what : "")});
  }
  for (const std::ptrdiff_t column : {5, 4}) {
    const auto is_empty = [&](const auto& row) { return row[static_cast<std::size_t>(column)].empty(); };
    if (!std::all_of(rows.begin() + 1, rows.end(), is_empty)) continue;
    for (auto& row : rows) row.erase(row.begin() + column);
  }
  out.table(std::move(rows), {"STEP", "SIZE", "RANKS", "LOSS", "HELD-OUT"});
}

std::int64_t parse_step(const std::string& text) {
  if (const auto step = parse_int<std::int64_t>(text); step && *step >= 0) return *step;
  throw Error(ErrorKind::kUsage, fmt::format("--delete: '{}' is not the number of a step", text));
}

std::vector<std::int64_t> steps_to_remove(const std::vector<Listed>& all, const ckpt::RunCheckpoints& store,
                                          const RunPlace& place, const CheckpointsOptions& options) {
  std::vector<std::int64_t> steps;
  for (const std::string& text : options.steps) {
    const std::int64_t step = parse_step(text);
    if (std::none_of(all.begin(), all.end(), [&](const Listed& one) { return one.step == step; })) {
      throw Error(ErrorKind::kMissing,
                  fmt::format("'{}' holds no checkpoint of step {}", options.path, step));
    }
    steps.push_back(step);
  }
  if (options.keep_last > 0) {
    // A checkpoint that is not whole does not count, and goes if it is older than those that stay.
    std::int64_t left = options.keep_last;
    const std::optional<std::int64_t> best = reported_of(all, place).best;
    for (auto one = all.rbegin(); one != all.rend(); ++one) {
      if (left == 0 && one->step == best) {
        log::info(fmt::format("'{}' is the best checkpoint, and stays; --delete {} removes it",
                              store.path_of(one->step).string(), one->step));
      } else if (left == 0 && store.is_of_training(one->step)) {
        steps.push_back(one->step);
      } else if (left == 0) {
        log::warn(fmt::format("'{}' is not a checkpoint of a training, and stays; --delete {} removes it",
                              store.path_of(one->step).string(), one->step));
      }
      if (left > 0 && !one->why_not_whole) --left;
    }
  }
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

void check_that_one_stays(const std::vector<Listed>& all, const std::vector<std::int64_t>& steps) {
  const auto is_whole = [](const Listed& one) { return !one.why_not_whole; };
  const auto stays = [&](const Listed& one) {
    return is_whole(one) && !std::binary_search(steps.begin(), steps.end(), one.step);
  };
  if (std::none_of(all.begin(), all.end(), is_whole) || std::any_of(all.begin(), all.end(), stays)) return;
  throw Error(ErrorKind::kUsage, "this would remove the last whole checkpoint")
      .hint("pass --force to remove it nevertheless");
}

void remove(ckpt::RunCheckpoints& checkpoints, const RunPlace& place, const CheckpointsOptions& options) {
  // The directory of the checkpoints may be a mount in a directory that this user may not write.
  const auto lock = ckpt::RunLock::take(
      place.output,
      {"accel checkpoints", "", ckpt::RunLock::Request().stale_after_s,
       "wait until it ends; training.checkpoint.total_limit removes old checkpoints during a run",
       /*is_optional=*/true});
  if (lock == nullptr)
    log::warn(fmt::format("'{}' cannot be written, so no run is kept away meanwhile", place.output.string()));
  const std::vector<Listed> all = list(checkpoints);
  const std::vector<std::int64_t> steps = steps_to_remove(all, checkpoints, place, options);
  if (!options.force) check_that_one_stays(all, steps);
  for (const std::int64_t step : steps) {
    if (lock != nullptr) lock->require();
    checkpoints.remove(step);
    log::info(fmt::format("removed '{}'", checkpoints.path_of(step).string()));
  }
}

ExitCode run_checkpoints(const CheckpointsOptions& options, const Globals& globals) {
  const RunPlace place = place_of_run(options.path);
  ckpt::RunCheckpoints checkpoints(place.checkpoints);
  if (!options.steps.empty() || options.keep_last > 0) remove(checkpoints, place, options);
  const std::vector<Listed> all = list(checkpoints);
  globals.json ? print_json(all, place, *globals.out) : print_text(all, place, *globals.out);
  return ExitCode::kSuccess;
}

}  // namespace

void add_checkpoints(CommandLine& line) {
  Command command = line.add("checkpoints", "List the checkpoints of a training run, or delete some");
  const auto options = std::make_shared<CheckpointsOptions>();
  command.positional("RUN_DIR", options->path, "The output_dir of a training, or its directory checkpoints");
  command.texts("--delete", "STEP", options->steps, "Delete the checkpoint of this step; repeatable");
  command.integer("--keep-last", "N", options->keep_last,
                  "Delete all checkpoints older than the N newest whole ones, but the best", 1);
  command.flag("--force", options->force, "Delete even the last whole checkpoint");
  command.does([options](const Globals& globals) { return run_checkpoints(*options, globals); });
}

}  // namespace accel::cli
