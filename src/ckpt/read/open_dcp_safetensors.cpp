#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/directory.hpp"
#include "base/files/json_text.hpp"
#include "ckpt/io/file_cache.hpp"
#include "ckpt/read/listed_checkpoint.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/safetensors/header.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

constexpr const char* kShardingKey = "DCP_SHARDING_INFO";

json sharding_of(const SafetensorsHeader& header) {
  const auto text = header.metadata.find(kShardingKey);
  if (text == header.metadata.end()) throw_corrupt(fmt::format("its metadata has no {}", kShardingKey));
  json sharding = parse_json_or_discard(text->second);
  if (!sharding.is_object()) throw_corrupt(fmt::format("its {} is not a JSON object", kShardingKey));
  return sharding;
}

// The part of its tensor that the file has.
Box box_of(const SafetensorsEntry& entry, const json& sharding) {
  const auto found = sharding.find(entry.name);
  const auto offsets = found != sharding.end() && found->is_object() ? found->find("saved_offsets") : found;
  if (found == sharding.end() || !found->is_object() || offsets == found->end() || !offsets->is_array())
    throw_corrupt(fmt::format("its {} has no saved_offsets", kShardingKey));
  Box box{{}, entry.shape};
  for (const json& offset : *offsets) {
    const bool sound =
        offset.is_number_unsigned() && std::in_range<std::int64_t>(offset.get<std::uint64_t>());
    if (!sound) throw_corrupt(fmt::format("a saved offset is {}", offset.dump()));
    box.offsets.push_back(offset.get<std::int64_t>());
  }
  if (box.offsets.size() != entry.shape.size())
    throw_corrupt(fmt::format("its shape is {}, but its saved offsets are {}", to_string(entry.shape),
                              to_string(box.offsets)));
  return box;
}

class Gatherer {
 public:
  void add(const std::string& file, const SafetensorsHeader& header) {
    const json sharding = sharding_of(header);
    for (const SafetensorsEntry& entry : header.entries) {
      with_context("tensor", entry.name, [&] { add(file, header, entry, box_of(entry, sharding)); });
    }
  }

  [[nodiscard]] std::vector<ListedTensor> take() && {
    std::vector<ListedTensor> tensors;
    for (auto& [name, tensor] : by_name_) {
      const auto same_box = [](const Extent& a, const Extent& b) { return a.box == b.box; };
      std::stable_sort(tensor.extents.begin(), tensor.extents.end(), [](const Extent& a, const Extent& b) {
        return std::tie(a.box.offsets, a.box.sizes) < std::tie(b.box.offsets, b.box.sizes);
      });
      std::vector<Extent> once;
      for (Extent& extent : tensor.extents) {
        const bool copy = !once.empty() && same_box(once.back(), extent);
        (copy ? tensor.copies : once).push_back(std::move(extent));
      }
      tensor.extents = std::move(once);
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }

 private:
  void add(const std::string& file, const SafetensorsHeader& header, const SafetensorsEntry& entry, Box box) {
    auto [found, fresh] = by_name_.try_emplace(entry.name);
    ListedTensor& tensor = found->second;
    if (fresh) {
      tensor.path = {entry.name};
      tensor.dtype = entry.dtype;
      tensor.shape.assign(entry.shape.size(), 0);
      tensor.obstacle = entry.obstacle;
    }
    if (tensor.dtype != entry.dtype || tensor.shape.size() != entry.shape.size()) {
      throw_corrupt(fmt::format("it is {} {} here, and {} of {} dimensions in another file",
                                torch_name(entry.dtype), to_string(entry.shape), torch_name(tensor.dtype),
                                tensor.shape.size()));
    }
    // The format does not state the shape of a tensor: it is what its parts cover together.
    for (std::size_t d = 0; d < box.sizes.size(); ++d) {
      tensor.shape[d] = std::max(tensor.shape[d], checked_add(box.offsets[d], box.sizes[d]));
    }
    (void)checked_nbytes(tensor.shape, item_bytes(tensor.dtype));
    if (box.numel() == 0) return;
    Dims strides = row_major_strides(box.sizes);
    tensor.extents.push_back({file, header.buffer_offset + entry.begin, std::move(box), std::move(strides)});
  }

  std::map<std::string, ListedTensor> by_name_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_dcp_safetensors(const std::filesystem::path& directory) {
  Listing listing{Kind::kDcpSafetensors, directory, directory, {}, {}, {}};
  FileCache files(directory);
  Gatherer gatherer;
  for (const std::string& file : files_in(directory, "shard-", ".safetensors")) {
    try {
      const SafetensorsHeader header = read_safetensors_header(files.open(file));
      gatherer.add(file, header);
      for (const auto& [key, value] : header.metadata) {
        if (key != kShardingKey) listing.metadata.emplace(key, value);
      }
    } catch (Error& e) {
      if (e.message().find(file) == std::string::npos)
        e.add_context(fmt::format("'{}'", (directory / file).string()));
      throw;
    }
  }
  listing.tensors = std::move(gatherer).take();
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

}  // namespace accel::ckpt
