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

// The attributes of an instance. The state of a class with slots is a tuple of its __dict__ and its slots.
const Pairs& members_of(const Value& value, std::string_view what) {
  const auto* object = value.get<Object>();
  if (object != nullptr && !(*object)->states.empty()) {
    const Value& state = (*object)->states.back();
    const auto* both = state.get<pickle::Tuple>();
    const Pairs* pairs =
        pickle::mapping_of(both != nullptr && both->items.size() == 2 ? both->items[1] : state);
    if (pairs != nullptr) return *pairs;
  }
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
  const auto* object = process_group.get<Object>();
  if (object == nullptr || (*object)->states.empty()) return 0;
  const Pairs* state = pickle::mapping_of((*object)->states.back());
  const Value* count = state != nullptr ? pickle::find(*state, "global_world_size") : nullptr;
  const auto* number = count != nullptr ? count->get<std::int64_t>() : nullptr;
  constexpr std::int64_t kMostRanks = std::int64_t{1} << 24;
  return number != nullptr && *number > 0 && *number <= kMostRanks ? *number : 0;
}

}  // namespace

std::optional<ShardedTensor> sharded_tensor_of(const Value& value) {
  const ObjectParts* parts = pickle::object_of(value, "torch._tensor", "_rebuild_from_type_v2");
  if (parts == nullptr || parts->args.size() != 4) return std::nullopt;
  const auto* type = parts->args[1].get<pickle::Global>();
  const Values* state = pickle::sequence_of(parts->args[3]);
  if (type == nullptr || type->name() != "ShardedTensor" || state == nullptr || state->size() < 3)
    return std::nullopt;
  ShardedTensor tensor;
  tensor.shape = dims_of(member(members_of((*state)[1], "the metadata"), "size"));
  const Values* shards = pickle::sequence_of((*state)[0]);
  if (shards == nullptr) throw_corrupt("the shards of a ShardedTensor are not a list");
  for (const Value& shard : *shards) tensor.shards.push_back(shard_of(shard, tensor.shape));
  tensor.ranks = ranks_of((*state)[2]);
  return tensor;
}

}  // namespace accel::ckpt
