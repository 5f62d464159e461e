#pragma once

#include <ATen/core/Tensor.h>

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

/// The number of param_groups in what optimizer_state() returns: 2 if only some parameters have weight decay.
std::size_t count_param_groups(const std::vector<Optimizer::State>& states);

struct LearningRates {
  double next = 0;  ///< That of the next step.
  double base = 0;  ///< training.optimizer.lr.
};

/// Returns the part of the optimizer's state dict, under the root key `optimizer`, that `rank` of the mesh
/// writes. It has the form of torch's get_optimizer_state_dict: state.<fqn>.step, the tensors of the plan
/// beside it, such as state.<fqn>.exp_avg, and, on rank 0, param_groups. `states` are those of the optimizer.
/// A thread that calls this while the optimizer counts steps passes a copy of them.
RankState optimizer_state(const Optimizer& optimizer, const std::vector<Optimizer::State>& states,
                          const Mesh& mesh, const LearningRates& lr, int rank);

}  // namespace accel::train
