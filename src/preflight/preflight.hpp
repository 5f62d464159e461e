#pragma once

#include <filesystem>
#include <optional>

#include "core/config/loaded_config.hpp"
#include "preflight/training_data.hpp"

namespace accel {

/// What a launch knows beside the configuration.
struct PreflightOptions {
  /// The training begins with the weights of its configuration, and not with a checkpoint of its own.
  bool begins = true;
  /// The checkpoint of its own that the training goes on from; empty for another one, or without one.
  std::filesystem::path checkpoint = {};
  /// The files of the model are on this machine. With training.model.broadcast_from_rank0 only rank 0 needs
  /// them.
  bool has_model = true;
};

/// Throws the Error that keeps a training from its steps, or an evaluation, as far as headers and a look at
/// the data show it: without libtorch, before any rank starts. It is of kind kUsage and names the key, with
/// the file and line that set it, unless a file is damaged or missing. docs/design/037 says what it does not
/// find. The checks:
///
/// - the model file is one, it was exported for training, its layers are those that the configuration wraps,
///   and its forward takes the configured inputs;
/// - it has values, or the configured weights have each of its parameters in the right shape; of a training
///   that goes on, its checkpoint has them, and is of as many samples;
/// - the data have the fields, and are enough for a step;
/// - of a program of torch.export: the fields have the dtype and the sizes for which it was exported, and the
///   labels of some thousand samples are among the classes that it gives;
/// - a sequence is not longer than the model's table of positions, which its name tells.
///
/// Held-out data are compared with the model only if something evaluates on them.
///
/// Returns what a training takes of its data, and nothing for an evaluation.
std::optional<TrainingData> preflight(const config::LoadedConfig& loaded, PreflightOptions options);

/// Throws Error (kUsage) if the checkpoint of a finished run is of another model than the configuration's.
/// The model file of a finished run may be gone.
void require_model_of(const config::LoadedConfig& loaded, const std::filesystem::path& checkpoint);

}  // namespace accel
