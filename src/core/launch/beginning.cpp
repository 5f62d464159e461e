#include "core/launch/beginning.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/best_checkpoint.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/resume_point.hpp"
#include "ckpt/store/run_checkpoints.hpp"
#include "ckpt/store/run_state.hpp"
#include "ckpt/store/saved_parts.hpp"
#include "core/config/keys/number_settings.hpp"
#include "core/config/mesh.hpp"
#include "core/launch/origin.hpp"
#include "data/batch_plan.hpp"

namespace accel::launch {
namespace {

namespace fs = std::filesystem;

constexpr const char* kResume = "training.checkpoint.resume";

/// A run that begins must not mix its checkpoints with those of another run.
void refuse_earlier_checkpoints(const config::TrainingConfig& training) {
  if (!training.checkpoint.enabled()) return;
  const fs::path folder = training.output_dir / "checkpoints";
  const auto name = ckpt::RunCheckpoints(folder).first_name();
  if (!name) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' holds checkpoints of an earlier run, among them {}", folder.string(), *name))
      .hint(
          "choose another output_dir, move that one away, or go on with that run: "
          "training.checkpoint.resume: auto");
}

/// Whether there are metrics of an earlier run.
bool has_metrics(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(fs::status(file, error))) return false;
  if (!fs::is_regular_file(file, error))
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is not a regular file", file.string()))
        .hint("choose another output_dir, or move that file away");
  return fs::file_size(file, error) > 0;
}

/// Keeps the metrics of an earlier run that left no checkpoint to go on from.
void set_metrics_aside(const fs::path& file) {
  int number = 1;
  fs::path free = file.parent_path() / "metrics.1.jsonl";
  while (!rename_to_free(file, free)) free = file.parent_path() / fmt::format("metrics.{}.jsonl", ++number);
  sync_directory(file.parent_path());
  log::info(fmt::format("'{}' is of an earlier run without a checkpoint; it is renamed to '{}'",
                        file.string(), free.filename().string()));
}

std::int64_t step_of(const fs::path& checkpoint) {
  return ckpt::read_run_state(checkpoint / ckpt::kRunStateName).step;
}

/// Whether a run has stopped early at a checkpoint, by the configuration as it is now.
bool has_stopped_early(const fs::path& checkpoint, const config::TrainingConfig& training) {
  const std::int64_t patience = training.early_stopping.patience;
  if (patience == 0) return false;
  const auto state = ckpt::read_run_state(checkpoint / ckpt::kRunStateName).early_stopping;
  const std::string metric = ckpt::BestMetric(training.best_metric).key();
  return state && state->metric == metric && state->patience_counter >= patience;
}

Beginning beginning_from(const fs::path& checkpoint, std::int64_t step, const config::LoadedConfig& loaded) {
  const config::TrainingConfig& training = *loaded.config.training;
  const std::int64_t last = last_step_from(loaded, checkpoint);
  const fs::path& output = training.output_dir;
  const bool exports = training.checkpoint.exports_safetensors;
  const bool is_early = step < last && has_stopped_early(checkpoint, training);
  const bool is_finished = step >= last || is_early;
  if (is_finished && exports && !fs::exists(output / "export")) {
    log::info(fmt::format("the run is finished, and '{}' is not there: it is made from '{}'",
                          (output / "export").string(), checkpoint.string()));
    return {fs::canonical(checkpoint), step, false};
  }
  if (is_finished) {
    const std::string why =
        is_early
            ? std::string("the run has stopped early there")
            : fmt::format("{} is {}", training.epochs > 0 ? "the last step" : "training.max_steps", last);
    log::info(fmt::format("the run is finished: '{}' is of step {}, and {}; nothing to do",
                          checkpoint.string(), step, why));
    const ckpt::RunState state = ckpt::read_run_state(checkpoint / ckpt::kRunStateName);
    const auto others = config::changed_settings(state.settings, config::number_settings(loaded.config));
    if (!others.empty()) {
      log::warn(
          fmt::format("the finished run had other settings: {}; choose another training.output_dir "
                      "for a run with these",
                      fmt::join(others, "; ")));
    }
    return {checkpoint, step, true};
  }
  log::info(fmt::format("resuming from '{}', step {} of {}", checkpoint.string(), step, last));
  return {fs::canonical(checkpoint), step, false};
}

/// The newest whole checkpoint of the run. Newer ones that are not whole are set aside, because the run will
/// write checkpoints of these steps again.
std::optional<std::int64_t> newest_of(ckpt::RunCheckpoints& checkpoints, const fs::path& folder) {
  const ckpt::ResumePoint point = ckpt::newest_whole(checkpoints);
  if (!point.step && !point.skipped.empty()) {
    const ckpt::BrokenCheckpoint& newest = point.skipped.front();
    throw Error(ErrorKind::kMissing,
                fmt::format("'{}' holds {} checkpoints, and none of them is whole; of the newest, '{}': {}",
                            folder.string(), point.skipped.size(),
                            checkpoints.path_of(newest.step).filename().string(), newest.why))
        .hint(
            "`accel verify` says what is damaged; to begin again, choose another output_dir or move them "
            "away");
  }
  for (const ckpt::BrokenCheckpoint& broken : point.skipped) {
    const fs::path there = checkpoints.set_aside(broken.step, ckpt::kDamaged);
    log::warn(fmt::format("skipping '{}': {}; it is renamed to '{}'",
                          checkpoints.path_of(broken.step).string(), broken.why, there.filename().string()));
  }
  return point.step;
}

/// Throws if `path` is what Accelerator.save_state writes without FSDP, or a checkpoint of transformers'
/// Trainer. The state of their optimizers is under the positions of the parameters.
void refuse_state_of_python(const fs::path& path) {
  if (fs::exists(path / ckpt::kManifestName)) return;
  const auto has = [&](const char* name) { return fs::exists(path / name); };
  const bool is_trainers = has("optimizer.pt") || has("scheduler.pt") || has("training_args.bin");
  const bool is_plain = has("optimizer.bin") && !ckpt::saved_part(path, ckpt::kModelStem);
  if (!is_trainers && !is_plain) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' is {}, whose optimizer a training cannot go on with: its state is under the "
                          "positions of the parameters, or in a form of its own",
                          path.string(),
                          is_trainers ? "a checkpoint of transformers' Trainer"
                                      : "a state that Accelerate saved without FSDP"))
      .hint(fmt::format("training.model.weights: {} begins a run with its weights", path.string()));
}

/// Whether another program than accel wrote `path`, which training.checkpoint.resume names. Throws unless a
/// training can go on from it, as far as names of files tell.
bool is_of_another_program(const fs::path& path) {
  if (!fs::exists(path)) throw Error(ErrorKind::kUsage, fmt::format("'{}' does not exist", path.string()));
  if (ckpt::RunCheckpoints::is_unfinished(fs::canonical(path).filename().string())) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is a save or a removal that has not finished", path.string()))
        .hint("name another checkpoint");
  }
  refuse_state_of_python(path);
  const bool has_state = fs::exists(path / ckpt::kRunStateName);
  const bool is_ours = has_state || fs::exists(path / ckpt::kManifestName);
  if (!is_ours && (ckpt::saved_part(path, ckpt::kOptimizerStem) || fs::exists(path / ".metadata")))
    return true;
  if (has_state) return false;
  throw Error(ErrorKind::kUsage, fmt::format("'{}' has no {}, so it is not a checkpoint of a training",
                                             path.string(), ckpt::kRunStateName))
      .hint(
          "it is 'auto', 'none' or the path of a checkpoint_N; for weights alone there is "
          "training.model.weights");
}

Beginning begin_at(const fs::path& path, const config::LoadedConfig& loaded) {
  return config::blamed_on(kResume, loaded.settings, [&] {
    if (is_of_another_program(path)) {
      log::info(fmt::format("resuming from '{}', which another program wrote", path.string()));
      return Beginning{fs::canonical(path), 0, false};
    }
    const std::int64_t step = step_of(path);
    if (const auto why = ckpt::why_not_whole(path, step)) {
      throw Error(ErrorKind::kMissing, fmt::format("'{}' is not whole: {}", path.string(), *why))
          .hint("`accel verify` says what is damaged");
    }
    return beginning_from(path, step, loaded);
  });
}

[[noreturn]] void refuse_taken(const fs::path& path) {
  const char* what = fs::exists(path) ? "not a directory" : "a link to nowhere";
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' is {}, and the run writes a directory of this name", path.string(), what))
      .hint("remove it, or choose another output_dir");
}

/// Throws if something else has a name that the run needs for a directory behind `step`. Otherwise a save
/// would fail when its steps are done.
void refuse_taken_names(const config::LoadedConfig& loaded, std::int64_t step) {
  const config::TrainingConfig& training = *loaded.config.training;
  const auto require_free = [&](const char* name, bool is_written) {
    const fs::path path = training.output_dir / name;
    if (is_written && fs::exists(fs::symlink_status(path)) && !fs::is_directory(path)) refuse_taken(path);
  };
  config::blamed_on("training.output_dir", loaded.settings, [&] {
    require_free("checkpoints", training.checkpoint.enabled());
    require_free("export", training.checkpoint.exports_safetensors);
    require_free("profile", training.profile.has_value());
    require_free("tensorboard", training.tensorboard);
    if (!training.checkpoint.enabled()) return;
    const fs::path folder = training.output_dir / "checkpoints";
    if (const auto name = ckpt::RunCheckpoints(folder).taken_name(step)) refuse_taken(folder / *name);
  });
}

/// Whether `path` is a checkpoint of the run, whose checkpoints are in `checkpoints`; its step then.
std::optional<std::int64_t> own_step(const ckpt::RunCheckpoints& checkpoints, const fs::path& path) {
  for (const std::int64_t step : checkpoints.steps()) {
    std::error_code gone;
    if (fs::equivalent(checkpoints.path_of(step), path, gone)) return step;
  }
  return std::nullopt;
}

/// Throws if the run would go on from an older checkpoint than the one of its own that `path`, which is
/// training.checkpoint.resume, names. Whoever names a checkpoint does not get another one instead.
void require_named(const config::LoadedConfig& loaded, const ckpt::RunCheckpoints& checkpoints,
                   const fs::path& path) {
  const auto own = own_step(checkpoints, path);
  if (!own) return;
  const auto whole = ckpt::newest_whole(checkpoints).step;
  if (whole && *whole >= *own) return;
  const std::string why = ckpt::why_not_whole(checkpoints.path_of(*own), *own).value_or("it changes");
  config::blamed_on(kResume, loaded.settings, [&] {
    throw Error(ErrorKind::kMissing,
                fmt::format("'{}' is not whole: {}", checkpoints.path_of(*own).string(), why))
        .hint(whole ? fmt::format("the newest whole one is '{}': training.checkpoint.resume: auto goes on "
                                  "from it",
                                  checkpoints.path_of(*whole).string())
                    : "`accel verify` says what is damaged; no older one is whole");
  });
}

/// Whether a run whose training.checkpoint.resume is a path goes on as that of auto does; false if it is to
/// be rolled back. Throws if it did not begin from the path.
bool goes_on(const config::LoadedConfig& loaded, const ckpt::RunCheckpoints& checkpoints, Origin& origin,
             bool discards_later) {
  const config::TrainingConfig& training = *loaded.config.training;
  const fs::path path = training.checkpoint.resume;
  const std::vector<std::int64_t> steps = checkpoints.steps();
  if (steps.empty()) return true;
  if (discards_later && !origin.is_rolled_back_to(path)) return false;
  require_named(loaded, checkpoints, path);
  const auto own = own_step(checkpoints, path);
  if (origin.is_from(path)) {
    log::info(fmt::format("the run {} '{}' before, and goes on",
                          discards_later ? "was rolled back to" : "began from", path.string()));
    if (discards_later)
      log::info(fmt::format("to roll it back once more, remove '{}'", origin.file().string()));
    return true;
  }
  if (own == steps.back()) {
    origin.begin_from(path, /*is_new_run=*/false, /*is_rollback=*/false);
    return true;
  }
  return config::blamed_on(kResume, loaded.settings, [&]() -> bool {
    if (!fs::exists(path)) throw Error(ErrorKind::kUsage, fmt::format("'{}' does not exist", path.string()));
    const std::string newest = checkpoints.path_of(steps.back()).string();
    throw Error(ErrorKind::kUsage,
                own ? fmt::format("'{}' is not the newest checkpoint of the run, which is '{}'",
                                  path.string(), newest)
                    : fmt::format("the run in '{}' did not begin from '{}', and has checkpoints of its own, "
                                  "the newest is '{}'",
                                  training.output_dir.string(), path.string(), newest))
        .hint(fmt::format("training.checkpoint.resume: auto goes on from the newest one; with "
                          "--discard-later {} renamed to checkpoint_N.discarded, and the run begins from "
                          "that path; or choose another output_dir",
                          own ? "those behind that path are" : "all of them are"));
  });
}

/// Begins at the path of training.checkpoint.resume, and renames the checkpoints behind it, the newest first:
/// an interruption leaves a run that can be rolled back by the same command.
Beginning roll_back(const config::LoadedConfig& loaded, ckpt::RunCheckpoints& checkpoints, Origin& origin) {
  const config::TrainingConfig& training = *loaded.config.training;
  const fs::path path = training.checkpoint.resume;
  const fs::path metrics = training.output_dir / "metrics.jsonl";
  const auto own = own_step(checkpoints, path);
  Beginning beginning = begin_at(path, loaded);
  if (beginning.is_finished) return beginning;
  refuse_taken_names(loaded, beginning.step);
  std::vector<std::int64_t> later = checkpoints.steps();
  if (own) std::erase_if(later, [&](std::int64_t step) { return step <= *own; });
  std::reverse(later.begin(), later.end());
  for (const std::int64_t step : later) {
    const fs::path there = checkpoints.set_aside(step, ckpt::kDiscarded);
    log::info(fmt::format("'{}' is renamed to '{}'", checkpoints.path_of(step).string(),
                          there.filename().string()));
  }
  if (!own && has_metrics(metrics)) set_metrics_aside(metrics);
  origin.begin_from(path, /*is_new_run=*/!own, /*is_rollback=*/true);
  return beginning;
}

}  // namespace

void require_named_checkpoint(const config::LoadedConfig& loaded) {
  const config::TrainingConfig& training = *loaded.config.training;
  const std::string& resume = training.checkpoint.resume;
  if (resume == "auto" || resume == "none" || loaded.config.launch.machine_rank != 0) return;
  // A run that has checkpoints of its own may go on from those.
  if (!ckpt::RunCheckpoints(training.output_dir / "checkpoints").steps().empty()) return;
  config::blamed_on(kResume, loaded.settings, [&] { (void)is_of_another_program(resume); });
}

std::int64_t last_step_from(const config::LoadedConfig& loaded, const fs::path& checkpoint) {
  const config::TrainingConfig& training = *loaded.config.training;
  const fs::path file = checkpoint / ckpt::kRunStateName;
  if (training.epochs == 0 || checkpoint.empty() || !fs::exists(file)) return training.max_steps;
  const ckpt::RunState state = ckpt::read_run_state(file);
  const BatchPlan plan{state.data.samples, training.data.batch_size,
                       config::mesh_of(loaded.config).data_size(), training.data.drop_last};
  const std::int64_t last =
      checked_add(state.step, plan.steps_until(training.epochs, state.data.epoch, state.data.samples_done,
                                               training.gradient_accumulation_steps));
  return std::min(last, loaded.settings.get<std::int64_t>("training.max_steps").value_or(last));
}

bool is_finished(const config::LoadedConfig& loaded, const fs::path& checkpoint, std::int64_t step) {
  return step >= last_step_from(loaded, checkpoint) || has_stopped_early(checkpoint, *loaded.config.training);
}

Damage set_damaged_aside(const config::TrainingConfig& training,
                         const std::function<void(const std::string& text)>& tell) {
  const fs::path& path = training.checkpoint.resume_from;
  if (path.empty()) return {};
  try {
    if (!fs::exists(path / ckpt::kManifestName)) return {};
    std::uint64_t bytes = 0;
    for (const auto& [name, listed] : ckpt::parse_manifest(path / ckpt::kManifestName).files)
      bytes += listed.bytes;
    const std::string what =
        fmt::format("checking '{}' ({}), which a rank found corrupt", path.string(), format_bytes(bytes));
    log::info(what);
    tell(what);
    const auto why = ckpt::why_damaged(path, [&tell] { tell(""); });
    if (!why) return {};
    const std::string damaged = fmt::format("'{}' is damaged: {}", path.string(), *why);
    const fs::path folder = training.output_dir / "checkpoints";
    ckpt::RunCheckpoints checkpoints(folder);
    const ckpt::ResumePoint own = ckpt::newest_whole(checkpoints);
    if (!own.step || fs::canonical(checkpoints.path_of(*own.step)) != path) return {damaged, false};
    std::error_code not_a_path;
    if (fs::equivalent(training.checkpoint.resume, path, not_a_path))
      return {damaged + "; it keeps its name, since training.checkpoint.resume names it", false};
    const auto older = ckpt::newest_whole(checkpoints, *own.step).step;
    if (!older) return {damaged + "; there is no older one to go on from, so it keeps its name", false};
    return {fmt::format("{}; it is renamed to '{}', and the run goes on from '{}' when it starts again",
                        damaged, checkpoints.set_aside(*own.step, ckpt::kDamaged).filename().string(),
                        checkpoints.path_of(*older).filename().string()),
            true};
  } catch (const std::exception& failure) {
    const Error error = error_of(failure);
    if (is_by_signal(error.kind())) throw;
    // An error of the system says nothing about the checkpoint, which stays where it is.
    log::warn(fmt::format("'{}' could not be checked: {}", path.string(), error.message()));
    return {};
  }
}

std::int64_t newest_step(const config::TrainingConfig& training) {
  if (!training.checkpoint.enabled()) return 0;
  const fs::path folder = training.output_dir / "checkpoints";
  try {
    return ckpt::newest_whole(ckpt::RunCheckpoints(folder)).step.value_or(0);
  } catch (const std::exception& failure) {
    log::warn(fmt::format("'{}' could not be read: {}", folder.string(), error_of(failure).message()));
    return 0;
  }
}

Beginning find_beginning(const config::LoadedConfig& loaded, BeginningOptions options) {
  const config::TrainingConfig& training = *loaded.config.training;
  const fs::path folder = training.output_dir / "checkpoints";
  const fs::path metrics = training.output_dir / "metrics.jsonl";
  const bool is_new = training.checkpoint.resume == "none";
  if (is_new && options.is_restart && !training.checkpoint.enabled()) {
    refuse_taken_names(loaded, 0);
    // Checkpoints that are there are of another run.
    if (has_metrics(metrics)) set_metrics_aside(metrics);
    return {};
  }
  const std::string resume = is_new && options.is_restart ? "auto" : training.checkpoint.resume;
  Origin origin(training.output_dir);
  if (resume == "none") {
    config::blamed_on("training.output_dir", loaded.settings, [&] {
      refuse_earlier_checkpoints(training);
      if (!has_metrics(metrics)) return;
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' holds the metrics of an earlier run", metrics.string()))
          .hint("choose another output_dir, or move that file away");
    });
    refuse_taken_names(loaded, 0);
    origin.begin_from_nothing();
    return {};
  }
  ckpt::RunCheckpoints checkpoints(folder);
  const bool is_path = resume != "auto";
  if (is_path && !options.is_restart) origin.read();
  if (is_path && !options.is_restart && !goes_on(loaded, checkpoints, origin, options.discards_later))
    return roll_back(loaded, checkpoints, origin);
  if (is_path) require_named(loaded, checkpoints, resume);
  const auto newest = config::blamed_on("training.output_dir", loaded.settings,
                                        [&] { return newest_of(checkpoints, folder); });
  if (newest) {
    const fs::path path = checkpoints.path_of(*newest);
    Beginning beginning = beginning_from(path, step_of(path), loaded);
    // A run that was killed behind its last commit may have left an old checkpoint half removed.
    if (beginning.is_finished) checkpoints.sweep();
    if (!beginning.is_finished) refuse_taken_names(loaded, *newest);
    return beginning;
  }
  Beginning beginning = is_path ? begin_at(resume, loaded) : Beginning{};
  if (beginning.is_finished) return beginning;
  refuse_taken_names(loaded, beginning.step);
  if (has_metrics(metrics)) set_metrics_aside(metrics);
  if (is_path) {
    origin.begin_from(resume, /*is_new_run=*/true, options.discards_later);
  } else {
    origin.begin_from_nothing();
  }
  return beginning;
}

}  // namespace accel::launch
