#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "core/config/loaded_config.hpp"

namespace accel::launch {

/// Where a training begins.
struct Beginning {
  std::filesystem::path checkpoint;  ///< The checkpoint to go on from; empty to begin with step 1.
  std::int64_t step = 0;             ///< The step of the checkpoint, if accel wrote it.
  bool is_finished = false;          ///< The checkpoint is of the last step, so there is nothing to do.
};

/// What a launch says of the beginning beside its configuration.
struct BeginningOptions {
  bool is_restart = false;      ///< The training has failed, and begins again.
  bool discards_later = false;  ///< Rolls the run back to the path of training.checkpoint.resume.
};

/// Decides by training.checkpoint.resume where the training begins, and says it in the log. Call it with the
/// lock of claim_output().
///
/// - auto: the newest whole checkpoint of output_dir (ckpt::why_not_whole). Newer ones that are not whole are
///   renamed, with a warning. If there is none but metrics of an earlier run, these are renamed.
/// - a path: that checkpoint. If output_dir has checkpoints, then the run goes on from the newest one like
///   that of auto if it began from this path (Origin), and otherwise they are an Error of kind kUsage. If the
///   path is the newest one and not whole, that is an Error of kind kMissing.
///   With `discards_later` those behind the path are renamed to `checkpoint_N.discarded`: all of them if the
///   path is not one of them. This is done once for a path.
/// - none: step 1. Checkpoints or metrics of an earlier run are an Error of kind kUsage.
///
/// A name in output_dir that the run will need for a directory and that something else has is an Error of
/// kind kUsage.
///
/// A restart after a failure takes the newest checkpoint of the run in any case.
///
/// Checkpoints of which none is whole are an Error of kind kMissing: a run that begins anew would hide them.
Beginning find_beginning(const config::LoadedConfig& loaded, BeginningOptions options = {});

/// Throws an Error of kind kUsage if training.checkpoint.resume is a path from which no training can go on,
/// as far as names of files tell: what find_beginning() would refuse on machine 0 for a run that has no
/// checkpoints yet.
void require_named_checkpoint(const config::LoadedConfig& loaded);

/// The last step of a training that goes on from `checkpoint`, or from step 1 if the path is empty. With
/// training.epochs it depends on the checkpoint: on another number of ranks than now an epoch had another
/// number of steps. Throws Error as read_run_state() does.
[[nodiscard]] std::int64_t last_step_from(const config::LoadedConfig& loaded,
                                          const std::filesystem::path& checkpoint);

/// Whether a training that goes on from a checkpoint of that step has nothing to do: it is the last one, or
/// the training has stopped early there. Throws Error as read_run_state() does.
[[nodiscard]] bool is_finished(const config::LoadedConfig& loaded, const std::filesystem::path& checkpoint,
                               std::int64_t step);

/// What became of a damaged checkpoint.
struct Damage {
  std::string text;         ///< What was found and done; empty if the checkpoint is as it was saved.
  bool is_renamed = false;  ///< The next attempt or launch begins with an older checkpoint.
};

/// Reads all of the checkpoint that a failed attempt of a training began with, which one of its ranks found
/// corrupt. If its contents are not those that were saved, it is one of the run's own, and an older one is
/// whole, then it is renamed. Call it with the lock of claim_output().
///
/// It says in the log what it reads. `tell` tells the same to other machines, which wait meanwhile; it is
/// called again before each file, with an empty text. Throws an Error if this process was asked to end.
Damage set_damaged_aside(const config::TrainingConfig& training,
                         const std::function<void(const std::string& text)>& tell);

/// The step of the newest whole checkpoint of the run; 0 if there is none.
std::int64_t newest_step(const config::TrainingConfig& training);

}  // namespace accel::launch
