#pragma once

#include <filesystem>
#include <optional>

#include "plan/schedule/grad_scaler.hpp"
#include "train/checkpoint/load.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {

/// Whether `checkpoint` was written by another program than accel: it has neither the state of a run
/// nor a manifest.
[[nodiscard]] bool is_foreign(const std::filesystem::path& checkpoint);

/// Where the weights or the optimizer of `checkpoint`, which another program wrote, are: under one of
/// Accelerate's names (Accelerator.save_state), or `checkpoint` itself if it holds both
/// (torch.distributed.checkpoint). `stem` is as in ckpt::saved_part().
[[nodiscard]] std::filesystem::path foreign_part(const std::filesystem::path& checkpoint,
                                                 std::string_view stem);

/// Restores the state of the optimizer and the loss scale from a checkpoint that another program wrote. The
/// model has its weights already. The step is that of the optimizer; of the state of the run nothing else is
/// known. `differences` names what is not read. Throws what load_run() throws.
LoadedRun load_foreign_run(const std::filesystem::path& checkpoint, ShardedModel& model, Optimizer& optimizer,
                           std::optional<GradScaler>& scaler);

}  // namespace accel::train
