#include "ckpt/verify/sharded_tensor.hpp"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/files/directory.hpp"
#include "ckpt/store/rank_file_name.hpp"
#include "ckpt/torch/tensor.hpp"

namespace accel::ckpt {
namespace {

using pickle::Global;
using pickle::Pairs;
using pickle::Value;
using pickle::Values;

bool is_type(const Value& value) {
  const auto* type = value.get<Global>();
  return type != nullptr && type->name() == "ShardedTensor" &&
         type->module().starts_with("torch.distributed");
}

// The state of a ShardedTensor, (shards, metadata, ...). Early versions of the class were not tensors.
const Values* state_of(const Value& value) {
  const auto* object = value.get<pickle::Object>();
  if (object == nullptr) return nullptr;
  const pickle::ObjectParts& parts = **object;
  if (is_type(parts.callable) && !parts.states.empty()) return pickle::sequence_of(parts.states.back());
  const bool wrapped = parts.args.size() == 4 && is_type(parts.args[1]);
  return wrapped ? pickle::sequence_of(parts.args[3]) : nullptr;
}

// An attribute of an instance, or nullptr. The state of a class with slots is a pair of None and a dict.
const Value* attribute(const Value* instance, std::string_view name) {
  const auto* object = instance != nullptr ? instance->get<pickle::Object>() : nullptr;
  if (object == nullptr || (*object)->states.empty()) return nullptr;
  const Value& state = (*object)->states.back();
  const auto* both = state.get<pickle::Tuple>();
  const Pairs* pairs =
      pickle::mapping_of(both != nullptr && both->items.size() == 2 ? both->items[1] : state);
  return pairs != nullptr ? pickle::find(*pairs, name) : nullptr;
}

std::optional<Dims> offsets_of(const Value* shard) {
  const Value* offsets = attribute(shard, "shard_offsets");
  if (offsets == nullptr) return std::nullopt;
  return dims_of(*offsets);
}

}  // namespace

bool AbsentShards::add(const std::string& name, const Value& value) {
  const Values* state = state_of(value);
  if (state == nullptr) return false;
  const Values* local = state->empty() ? nullptr : pickle::sequence_of((*state)[0]);
  const Value* metadata = state->size() > 1 ? attribute(&(*state)[1], "shards_metadata") : nullptr;
  const Values* all = metadata != nullptr ? pickle::sequence_of(*metadata) : nullptr;
  if (local == nullptr || all == nullptr) return true;
  std::set<Dims> here;
  for (const Value& shard : *local) {
    if (std::optional<Dims> offsets = offsets_of(attribute(&shard, "metadata")))
      here.insert(*std::move(offsets));
  }
  std::set<std::int64_t> ranks;
  for (const Value& shard : *all) {
    const std::optional<Dims> offsets = offsets_of(&shard);
    if (!offsets || here.contains(*offsets)) continue;
    const Value* rank = attribute(attribute(&shard, "placement"), "_rank");
    const auto* number = rank != nullptr ? rank->get<std::int64_t>() : nullptr;
    ranks.insert(number != nullptr ? *number : -1);
  }
  for (const std::int64_t rank : ranks) tensors_of_rank_[rank].push_back(name);
  return true;
}

void AbsentShards::report(const std::filesystem::path& file, std::vector<Finding>& findings) const {
  const std::string name = file.filename().string();
  const std::optional<RankFileName> parsed = parse_rank_file_name(name);
  for (const auto& [rank, tensors] : tensors_of_rank_) {
    const std::string whose =
        fmt::format("shards of rank {} of {} tensor{}", rank, tensors.size(), tensors.size() == 1 ? "" : "s");
    if (!parsed || rank < 0 || rank == parsed->rank) {
      findings.push_back({FindingKind::kHole, name, tensors.front(), 0, 0,
                          fmt::format("the {} are not in the file", whose)});
      continue;
    }
    const std::string other = parsed->of(rank);
    std::error_code unreadable;
    if (std::filesystem::exists(parent_of(file) / other, unreadable)) continue;
    findings.push_back({FindingKind::kMissingFile, other, "", 0, 0,
                        fmt::format("is not there; {} says that it has the {}", name, whose)});
  }
}

}  // namespace accel::ckpt
