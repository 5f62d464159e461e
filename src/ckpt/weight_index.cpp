#include "ckpt/weight_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/file.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

[[noreturn]] void reject(const std::filesystem::path& path, std::string_view why) {
  throw Error(ErrorKind::kCorrupt, fmt::format("'{}': {}", path.string(), why));
}

}  // namespace

std::vector<std::string> WeightIndex::file_names() const {
  std::set<std::string> names;
  for (const auto& [tensor, file] : files) names.insert(file);
  return {names.begin(), names.end()};
}

WeightIndex read_weight_index(const std::filesystem::path& path) {
  WeightIndex index;
  index.path = path;
  const json document = json::parse(read_text_file(path), nullptr, false);
  if (document.is_discarded()) reject(path, "it is not JSON");
  const auto map = document.is_object() ? document.find("weight_map") : document.end();
  if (!document.is_object() || map == document.end() || !map->is_object())
    reject(path, "it has no weight_map of tensors to files");
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) reject(path, fmt::format("the file of '{}' is not a name", name));
    index.files.emplace(name, file.get<std::string>());
  }
  return index;
}

void check_weight_index(const WeightIndex& index, const std::string& file,
                        const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto entry = index.files.find(name);
    if (entry == index.files.end())
      reject(index.path, fmt::format("it does not list '{}', which '{}' has", name, file));
    if (entry->second != file) {
      reject(index.path,
             fmt::format("it says that '{}' is in '{}', but '{}' has it", name, entry->second, file));
    }
  }
  for (const auto& [name, expected] : index.files) {
    if (expected == file && !std::binary_search(names.begin(), names.end(), name))
      reject(index.path, fmt::format("it says that '{}' is in '{}', which has no such tensor", name, file));
  }
}

}  // namespace accel::ckpt
