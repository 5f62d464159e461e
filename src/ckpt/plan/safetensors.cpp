#include "ckpt/plan/safetensors.hpp"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/safetensors/header.hpp"

namespace accel::ckpt {
namespace {

OutputFile plan_file(const OutputState& state, const std::vector<std::size_t>& items, std::string name,
                     StringMap metadata) {
  metadata.emplace("format", "pt");
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::size_t> by_name;
  for (const std::size_t index : items) {
    const OutputItem& item = state.tensors[index];
    entries.push_back({fqn_of(item.path), item.dtype, item.shape, 0, 0});
    by_name.emplace(entries.back().name, index);
  }
  const std::set<std::size_t> kept(items.begin(), items.end());
  for (const OutputItem& item : state.tensors) {
    if (!item.tied_to || !kept.contains(*item.tied_to)) continue;
    metadata.emplace(fqn_of(item.path), fqn_of(state.tensors[*item.tied_to].path));
  }
  SafetensorsLayout layout = plan_safetensors(std::move(entries), std::move(metadata));
  OutputFile file;
  file.name = std::move(name);
  file.bytes = layout.total_bytes();
  file.segments.push_back({0, layout.prefix.size(), layout.prefix});
  for (const SafetensorsEntry& entry : layout.header.entries) {
    const OutputItem& item = state.tensors[by_name.at(entry.name)];
    if (entry.begin == entry.end) continue;
    file.segments.push_back(
        {layout.header.buffer_offset + entry.begin, entry.end - entry.begin, content_of(item)});
  }
  return file;
}

/// The items of one file, by index.
struct Shard {
  std::string name;
  std::vector<std::size_t> items;
};

OutputPlan plan_shards(const OutputState& state, const std::vector<Shard>& shards, const WeightFiles& names,
                       const StringMap& metadata) {
  OutputPlan plan;
  std::map<std::string, std::string> files;
  for (const Shard& shard : shards) {
    plan.files.push_back(plan_file(state, shard.items, shard.name, metadata));
    for (const std::size_t item : shard.items) files.emplace(fqn_of(state.tensors[item].path), shard.name);
  }
  plan.files.push_back(text_file(names.index(), index_json(state, files)));
  return plan;
}

}  // namespace

OutputPlan plan_safetensors_files(const OutputState& state, const WeightFiles& names,
                                  std::uint64_t max_shard_bytes, const StringMap& metadata) {
  const std::vector<std::vector<std::size_t>> shards = split_into_shards(state, max_shard_bytes);
  if (shards.size() == 1) return {{plan_file(state, shards.front(), names.single(), metadata)}};
  std::vector<Shard> named;
  for (std::size_t i = 0; i < shards.size(); ++i) named.push_back({names.shard(i, shards.size()), shards[i]});
  return plan_shards(state, named, names, metadata);
}

OutputPlan plan_same_safetensors_files(const OutputState& state, const WeightFiles& names,
                                       const std::vector<std::string>& files, const StringMap& metadata) {
  std::map<std::string, std::vector<std::size_t>> items;
  for (std::size_t i = 0; i < state.tensors.size(); ++i) items[files.at(i)].push_back(i);
  if (items.size() < 2) return plan_safetensors_files(state, names, 0, metadata);
  std::vector<Shard> shards;
  for (auto& [name, indices] : items) shards.push_back({name, std::move(indices)});
  return plan_shards(state, shards, names, metadata);
}

}  // namespace accel::ckpt
