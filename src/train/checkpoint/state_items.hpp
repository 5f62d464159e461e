#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "ckpt/dcp/rank_plan.hpp"
#include "ckpt/io/summed_file.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/optim/adamw.hpp"

namespace accel::train {

/// Where the bytes of one item are: a run of elements of a tensor of this rank. Objects have no tensor.
struct ItemSource {
  at::Tensor tensor;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
};

/// What one rank writes into a checkpoint; `sources` is parallel to `items`, and empty for other ranks than
/// our own.
struct RankState {
  std::vector<ckpt::DcpItem> items;
  std::vector<ItemSource> sources;
};

/// The part of the model's state dict, under the root key `model`, that `rank` writes: its portion of its
/// shard, that is of every parameter that is there, under each of a tied parameter's names; and, on rank 0,
/// the persistent buffers. The same on whatever rank it is computed, but for the tensors of `sources`, which
/// are those of the calling rank.
RankState model_state(const ShardedModel& model, int rank);

/// The part of the optimizer's state dict, under the root key `optimizer`, that `rank` of the mesh writes, in
/// the form of torch's get_optimizer_state_dict: state.<fqn>.{step,exp_avg,exp_avg_sq} and, on rank 0,
/// param_groups.
RankState optimizer_state(const AdamW& optimizer, const Mesh& mesh, const core::OptimizerConfig& config,
                          double lr, int rank);

/// Writes `state`, which must be the calling rank's, into `directory`.
ckpt::FileSummary write_state(const std::filesystem::path& directory, int rank, RankState state);

}  // namespace accel::train
