#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "ckpt/dcp/rank_plan.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {

/// The bytes of one item: a run of elements of a tensor of this rank. Objects have no tensor.
struct ItemSource {
  at::Tensor tensor;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
};

/// What one rank writes into a checkpoint. `sources` is parallel to `items`, and has values of the calling
/// rank only.
struct RankState {
  std::vector<ckpt::DcpItem> items;
  std::vector<ItemSource> sources;
};

/// Adds a tensor as one chunk.
void add_whole(RankState& state, ckpt::StatePath path, const at::Tensor& tensor);

/// Returns the part of the model's state dict, under the root key `model`, that `rank` writes: its portion of
/// every parameter in its shard, under each name of a tied parameter, and on rank 0 the persistent buffers.
/// With `adapter_only` it has neither buffers nor frozen parameters, and the others have the names that PEFT
/// gives them in a file. Every rank computes the same items for `rank`, but the tensors of `sources` are
/// those of the calling rank.
RankState model_state(const ShardedModel& model, bool adapter_only, int rank);

/// The further names of tied parameters in model_state(), each with the first name of its parameter. An
/// adapter's parameters have other names there.
std::map<std::string, std::string> tied_names(const ShardedModel& model);

/// The optimizers of the plan that have parameters, in their order. Each is a part of a checkpoint.
std::vector<std::size_t> used_optimizers(const Optimizer& optimizer);

/// The learning rates of the param_groups of one optimizer, before the schedule.
std::vector<double> base_rates(const Optimizer& optimizer, std::size_t number);

/// Which part of the optimizer's state optimizer_state() returns.
struct OptimizerPart {
  std::size_t optimizer = 0;  ///< One of used_optimizers().
  int rank = 0;               ///< What this rank of the mesh writes.
  double scale = 1;           ///< The factor of the learning rates in the next step.
};

/// Returns a part of the optimizer's state dict, under the root key `optimizer`. It has the form of torch's
/// get_optimizer_state_dict: state.<fqn>.step, if the optimizer counts steps, the tensors of the plan beside
/// it, such as state.<fqn>.exp_avg, and, on rank 0, param_groups. `states` are those of the optimizer. A
/// thread that calls this while the optimizer counts steps passes a copy of them.
RankState optimizer_state(const Optimizer& optimizer, const std::vector<OptimizerState>& states,
                          const Mesh& mesh, const OptimizerPart& part);

}  // namespace accel::train
