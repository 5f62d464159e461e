#include "ckpt/plan/weight_files.hpp"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/checked.hpp"
#include "ckpt/store/weight_index.hpp"

namespace accel::ckpt {

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

}  // namespace accel::ckpt
