#include "ckpt/plan/safetensors.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/checked.hpp"
#include "ckpt/store/weight_index.hpp"

namespace accel::ckpt {
namespace {

OutputFile plan_file(const OutputState& state, const std::vector<std::size_t>& items, std::string name) {
  StringMap metadata{{"format", "pt"}};
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
    file.segments.push_back({layout.header.buffer_offset + entry.begin, entry.end - entry.begin,
                             TensorContent{item.source, item.dtype, {}}});
  }
  return file;
}

}  // namespace

std::string WeightFiles::shard(std::size_t shard, std::size_t shards) const {
  return to_string(WeightShard{stem, static_cast<int>(shard) + 1, static_cast<int>(shards), extension});
}

bool WeightFiles::belongs(const std::string& name) const {
  if (name == single() || name == index()) return true;
  const std::optional<WeightShard> shard = parse_weight_shard(name);
  return shard && shard->stem == stem && shard->extension == extension;
}

std::uint64_t bytes_of(const OutputItem& item) { return checked_nbytes(item.shape, item_bytes(item.dtype)); }

std::vector<std::vector<std::size_t>> split_into_shards(const OutputState& state,
                                                        std::uint64_t max_shard_bytes) {
  std::vector<std::vector<std::size_t>> shards;
  std::vector<std::size_t> current;
  std::uint64_t current_bytes = 0;
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    if (state.tensors[i].tied_to) continue;
    const std::uint64_t bytes = bytes_of(state.tensors[i]);
    if (max_shard_bytes > 0 && bytes > max_shard_bytes) {
      shards.push_back({i});
      continue;
    }
    if (max_shard_bytes > 0 && current_bytes + bytes > max_shard_bytes) {
      shards.push_back(std::exchange(current, {}));
      current_bytes = 0;
    }
    current.push_back(i);
    current_bytes += bytes;
  }
  if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
  return shards;
}

std::string index_json(const OutputState& state, const std::map<std::string, std::string>& files) {
  std::uint64_t bytes = 0;
  std::uint64_t elements = 0;
  for (const OutputItem& item : state.tensors) {
    if (item.tied_to) continue;
    bytes = checked_add(bytes, bytes_of(item));
    elements = checked_add(elements, static_cast<std::uint64_t>(checked_numel(item.shape)));
  }
  const nlohmann::json document = {{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}},
                                   {"weight_map", files}};
  return document.dump(2, ' ', true) + "\n";
}

OutputPlan plan_safetensors_files(const OutputState& state, const WeightFiles& names,
                                  std::uint64_t max_shard_bytes) {
  const std::vector<std::vector<std::size_t>> shards = split_into_shards(state, max_shard_bytes);
  OutputPlan plan;
  if (shards.size() == 1) {
    plan.files.push_back(plan_file(state, shards.front(), names.single()));
    return plan;
  }
  std::map<std::string, std::string> files;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = names.shard(i, shards.size());
    plan.files.push_back(plan_file(state, shards[i], name));
    for (const std::size_t item : shards[i]) files.emplace(fqn_of(state.tensors[item].path), name);
  }
  OutputFile index;
  index.name = names.index();
  std::string text = index_json(state, files);
  index.bytes = text.size();
  index.segments.push_back({0, text.size(), std::move(text)});
  plan.files.push_back(std::move(index));
  return plan;
}

}  // namespace accel::ckpt
