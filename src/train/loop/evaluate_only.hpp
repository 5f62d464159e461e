#pragma once

#include "core/config/config.hpp"
#include "train/c10d/group.hpp"
#include "train/c10d/mesh_groups.hpp"

namespace accel::train {

/// The file in output_dir that an evaluation without training writes: a JSON object with `loss`, `samples`,
/// and for a cross entropy `perplexity` and `accuracy`.
inline constexpr const char* kEvaluationFile = "evaluation.json";

/// Evaluates the model of a run on training.data.eval without training it, with the weights of
/// training.checkpoint.resume_from, or those with which a training would begin. What is read of a checkpoint
/// is compared with the sums in its manifest. Rank 0 writes the result. Collective.
void evaluate_only(const config::Config& config, at::Device device, Group& group, const MeshGroups& groups);

}  // namespace accel::train
