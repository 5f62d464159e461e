#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/io/endian.hpp"
#include "ckpt/safetensors/header.hpp"

namespace accel::ckpt {
namespace {

constexpr std::uint64_t kHeaderAlignment = 8;

void check_entries(const std::vector<SafetensorsEntry>& entries) {
  std::set<std::string_view> names;
  for (const SafetensorsEntry& entry : entries) {
    if (info_of(entry.dtype).safetensors_name.empty()) {
      throw Error(ErrorKind::kFailure, fmt::format("tensor '{}' is {}, which safetensors cannot hold",
                                                   entry.name, torch_name(entry.dtype)));
    }
    if (entry.shape.empty() && info_of(entry.dtype).safetensors_pack != 1) {
      throw Error(ErrorKind::kFailure,
                  fmt::format("tensor '{}' is {} without dimensions, which safetensors cannot hold",
                              entry.name, torch_name(entry.dtype)));
    }
    if (entry.name == "__metadata__") {
      throw Error(ErrorKind::kFailure,
                  "a tensor is called '__metadata__', which in safetensors is the name of the metadata")
          .hint("rename it with --rename, or leave it out with --exclude");
    }
    if (!names.insert(entry.name).second) {
      throw Error(ErrorKind::kFailure, fmt::format("two tensors would be called '{}'", entry.name));
    }
  }
}

std::string encode(const SafetensorsHeader& header) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) root["__metadata__"] = header.metadata;
  // Names are unique, so entries are appended. A search in an ordered_json takes linear time for each.
  auto& members = root.get_ref<nlohmann::ordered_json::object_t&>();
  members.reserve(members.size() + header.entries.size());
  for (const SafetensorsEntry& entry : header.entries) {
    const DTypeInfo& info = info_of(entry.dtype);
    Dims shape = entry.shape;
    if (!shape.empty()) shape.back() = checked_mul(shape.back(), info.safetensors_pack);
    members.emplace_back(entry.name, nlohmann::ordered_json{{"dtype", info.safetensors_name},
                                                            {"shape", std::move(shape)},
                                                            {"data_offsets", {entry.begin, entry.end}}});
  }
  try {
    return root.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kFailure, "a tensor's name is not UTF-8");
  }
}

}  // namespace

SafetensorsLayout plan_safetensors(std::vector<SafetensorsEntry> entries, StringMap metadata) {
  check_entries(entries);
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    const int rank_a = info_of(a.dtype).safetensors_rank;
    const int rank_b = info_of(b.dtype).safetensors_rank;
    return std::tie(rank_b, a.name) < std::tie(rank_a, b.name);
  });
  SafetensorsLayout layout;
  for (SafetensorsEntry& entry : entries) {
    entry.begin = layout.header.buffer_bytes;
    entry.end = checked_add(entry.begin, checked_nbytes(entry.shape, item_bytes(entry.dtype)));
    layout.header.buffer_bytes = entry.end;
  }
  layout.header.entries = std::move(entries);
  layout.header.metadata = std::move(metadata);

  std::string text = encode(layout.header);
  text.resize(round_up<std::size_t>(text.size(), kHeaderAlignment), ' ');
  if (text.size() > kSafetensorsHeaderLimit) {
    throw Error(ErrorKind::kFailure, fmt::format("the header would have {} bytes; safetensors allows {}",
                                                 text.size(), kSafetensorsHeaderLimit));
  }
  put_uint(layout.prefix, text.size(), 8);
  layout.prefix += text;
  layout.header.buffer_offset = layout.prefix.size();
  return layout;
}

}  // namespace accel::ckpt
