#include "ckpt/torch/sharded_tensor.hpp"

#include <fmt/format.h>

#include <string_view>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel::ckpt {
namespace {

using pickle::Object;
using pickle::ObjectParts;
using pickle::Pairs;
using pickle::Value;
using pickle::Values;

bool is_type(const Value& value) {
  const auto* type = value.get<pickle::Global>();
  return type != nullptr && type->name() == "ShardedTensor" &&
         type->module().starts_with("torch.distributed");
}

// The state of a ShardedTensor: its shards, its metadata and its process group. Until torch 1.12 the class
// was no tensor.
const Values* state_of(const Value& value) {
  const auto* object = value.get<Object>();
  if (object == nullptr) return nullptr;
  const ObjectParts& parts = **object;
  if (is_type(parts.callable))
    return parts.states.empty() ? nullptr : pickle::sequence_of(parts.states.back());
  const bool is_wrapped = parts.args.size() == 4 && is_type(parts.args[1]);
  return is_wrapped ? pickle::sequence_of(parts.args[3]) : nullptr;
}

// The attributes of an instance, or nullptr. The state of a class with slots is a tuple of its __dict__ and
// its slots.
const Pairs* attributes_of(const Value& value) {
  const auto* object = value.get<Object>();
  if (object == nullptr || (*object)->states.empty()) return nullptr;
  const Value& state = (*object)->states.back();
  const auto* both = state.get<pickle::Tuple>();
  return pickle::mapping_of(both != nullptr && both->items.size() == 2 ? both->items[1] : state);
}

const Pairs& members_of(const Value& value, std::string_view what) {
  if (const Pairs* members = attributes_of(value)) return *members;
  throw_corrupt(fmt::format("{} of a ShardedTensor is {}", what, pickle::describe(value)));
}

const Value& member(const Pairs& members, std::string_view name) {
  const Value* value = pickle::find(members, name);
  if (value == nullptr) throw_corrupt(fmt::format("a ShardedTensor has no '{}'", name));
  return *value;
}

std::pair<Box, TorchTensor> shard_of(const Value& value, const Dims& shape) {
  const Pairs& members = members_of(value, "a shard");
  std::optional<TorchTensor> tensor = torch_tensor_of(member(members, "tensor"));
  if (!tensor) throw_corrupt("a shard of a ShardedTensor has no tensor");
  const Pairs& place = members_of(member(members, "metadata"), "the place of a shard");
  Box box{dims_of(member(place, "shard_offsets")), dims_of(member(place, "shard_sizes"))};
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size())
    throw_corrupt(fmt::format("a shard of a ShardedTensor of shape {} has another number of dimensions",
                              to_string(shape)));
  check_within(box, shape);
  if (tensor->shape != box.sizes) {
    throw_corrupt(fmt::format("a shard of a ShardedTensor is {}, but its place says {}",
                              to_string(tensor->shape), to_string(box.sizes)));
  }
  return {std::move(box), std::move(*tensor)};
}

std::int64_t ranks_of(const Value& process_group) {
  const Pairs* state = attributes_of(process_group);
  const Value* count = state != nullptr ? pickle::find(*state, "global_world_size") : nullptr;
  const auto* number = count != nullptr ? count->get<std::int64_t>() : nullptr;
  constexpr std::int64_t kMostRanks = std::int64_t{1} << 24;
  return number != nullptr && *number > 0 && *number <= kMostRanks ? *number : 0;
}

// The rank that a _remote_device names.
std::int64_t rank_of(const Value& placement) {
  const Pairs* members = attributes_of(placement);
  const Value* rank = members != nullptr ? pickle::find(*members, "_rank") : nullptr;
  const auto* number = rank != nullptr ? rank->get<std::int64_t>() : nullptr;
  return number != nullptr && *number >= 0 ? *number : -1;
}

// The metadata lists the shards of all ranks.
std::set<std::int64_t> other_ranks(const ShardedTensor& tensor, const Pairs& metadata) {
  std::set<std::int64_t> ranks;
  const Value* listed = pickle::find(metadata, "shards_metadata");
  const Values* all = listed != nullptr ? pickle::sequence_of(*listed) : nullptr;
  if (all == nullptr) return ranks;
  std::set<Dims> here;
  for (const auto& [box, local] : tensor.shards) here.insert(box.offsets);
  for (const Value& shard : *all) {
    const Pairs& place = members_of(shard, "the place of a shard");
    if (here.contains(dims_of(member(place, "shard_offsets")))) continue;
    const Value* placement = pickle::find(place, "placement");
    ranks.insert(placement != nullptr ? rank_of(*placement) : -1);
  }
  return ranks;
}

}  // namespace

std::optional<ShardedTensor> sharded_tensor_of(const Value& value) {
  const Values* state = state_of(value);
  if (state == nullptr || state->size() < 3) return std::nullopt;
  const Pairs& metadata = members_of((*state)[1], "the metadata");
  ShardedTensor tensor;
  tensor.shape = dims_of(member(metadata, "size"));
  const Values* shards = pickle::sequence_of((*state)[0]);
  if (shards == nullptr) throw_corrupt("the shards of a ShardedTensor are not a list");
  for (const Value& shard : *shards) tensor.shards.push_back(shard_of(shard, tensor.shape));
  tensor.ranks = ranks_of((*state)[2]);
  tensor.other_ranks = other_ranks(tensor, metadata);
  return tensor;
}

}  // namespace accel::ckpt
