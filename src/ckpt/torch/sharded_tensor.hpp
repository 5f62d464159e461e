#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/torch/tensor.hpp"

namespace accel::ckpt {

/// A ShardedTensor of torch.distributed as one rank pickles it: the parts that this rank has, each with its
/// place in the whole tensor.
struct ShardedTensor {
  Dims shape;  ///< Shape of the whole tensor.
  std::vector<std::pair<Box, TorchTensor>> shards;
  std::int64_t ranks = 0;  ///< The number of ranks that saved it; 0 if the pickle does not say.
};

/// The ShardedTensor that `value` describes, as torch 1.10 to 2.15 write it, or nothing if it is something
/// else. walk_state() refuses the form of torch before 1.13, in which the class is not a tensor, so that only
/// verification meets it. Throws Error (kCorrupt) if the description contradicts itself.
[[nodiscard]] std::optional<ShardedTensor> sharded_tensor_of(const pickle::Value& value);

/// The ranks that have the shards of a ShardedTensor that `value` lists but does not hold; -1 stands for a
/// rank that is not stated. Entries that cannot be read are passed over. Nothing if `value` is something
/// else.
[[nodiscard]] std::optional<std::set<std::int64_t>> ranks_of_absent_shards(const pickle::Value& value);

}  // namespace accel::ckpt
