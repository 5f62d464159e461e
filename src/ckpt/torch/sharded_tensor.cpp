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

// The attributes of an instance, or nullptr.
const Pairs* members_in(const Value& instance) {
  const auto* object = instance.get<Object>();
  return object != nullptr && !(*object)->states.empty() ? pickle::attributes_of((*object)->states.back())
                                                         : nullptr;
}

// An attribute of an instance, or nullptr.
const Value* find_member(const Value* instance, std::string_view name) {
  const Pairs* members = instance != nullptr ? members_in(*instance) : nullptr;
  return members != nullptr ? pickle::find(*members, name) : nullptr;
}

const Pairs& members_of(const Value& value, std::string_view what) {
  if (const Pairs* members = members_in(value)) return *members;
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
  const Value* count = find_member(&process_group, "global_world_size");
  const auto* number = count != nullptr ? count->get<std::int64_t>() : nullptr;
  return number != nullptr && *number > 0 ? *number : 0;
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
  return tensor;
}

std::optional<std::set<std::int64_t>> ranks_of_absent_shards(const Value& value) {
  const Values* state = state_of(value);
  if (state == nullptr) return std::nullopt;
  std::set<std::int64_t> ranks;
  const Values* local = state->empty() ? nullptr : pickle::sequence_of((*state)[0]);
  const Value* listed = state->size() > 1 ? find_member(&(*state)[1], "shards_metadata") : nullptr;
  const Values* all = listed != nullptr ? pickle::sequence_of(*listed) : nullptr;
  if (local == nullptr || all == nullptr) return ranks;
  std::set<Dims> here;
  for (const Value& shard : *local) {
    if (const Value* offsets = find_member(find_member(&shard, "metadata"), "shard_offsets"))
      here.insert(dims_of(*offsets));
  }
  for (const Value& shard : *all) {
    const Value* offsets = find_member(&shard, "shard_offsets");
    if (offsets == nullptr || here.contains(dims_of(*offsets))) continue;
    const Value* rank = find_member(find_member(&shard, "placement"), "_rank");
    const auto* number = rank != nullptr ? rank->get<std::int64_t>() : nullptr;
    ranks.insert(number != nullptr && *number >= 0 ? *number : -1);
  }
  return ranks;
}

}  // namespace accel::ckpt
