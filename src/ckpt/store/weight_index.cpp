#include "ckpt/store/weight_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/json_text.hpp"
#include "base/text.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

[[noreturn]] void reject(const std::filesystem::path& path, std::string_view why) {
  throw Error(ErrorKind::kCorrupt, fmt::format("'{}': {}", path.string(), why));
}

json read_index(const std::filesystem::path& path) {
  try {
    return read_json_file(path);
  } catch (Error& error) {
    if (error.kind() == ErrorKind::kCorrupt && error.message().find(path.string()) == std::string::npos)
      error.add_context(fmt::format("'{}'", path.string()));
    throw;
  }
}

// `name` without the parts "." that a path may have: "model.safetensors" for "./model.safetensors".
std::string without_dots(const std::string& name) {
  std::filesystem::path path;
  for (const std::filesystem::path& part : std::filesystem::path(name)) {
    if (part != ".") path /= part;
  }
  return path.string();
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
  const json document = read_index(path);
  if (document.is_discarded()) reject(path, "it is not JSON");
  const auto map = document.is_object() ? document.find("weight_map") : document.end();
  if (!document.is_object() || map == document.end() || !map->is_object())
    reject(path, "it has no weight_map of tensors to files");
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) reject(path, fmt::format("the file of '{}' is not a name", name));
    index.files.emplace(name, without_dots(file.get<std::string>()));
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

std::optional<WeightShard> parse_weight_shard(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  const std::size_t dot = name.rfind('.');
  const std::size_t of = name.substr(0, dot).rfind(kOf);
  if (dot == std::string_view::npos || of == std::string_view::npos) return std::nullopt;
  const std::size_t dash = name.substr(0, of).rfind('-');
  if (dash == std::string_view::npos) return std::nullopt;
  WeightShard shard{std::string(name.substr(0, dash)), 0, 0, std::string(name.substr(dot))};
  const auto read = [](std::string_view digits, int& number, int& width) {
    width = static_cast<int>(digits.size());
    number = is_digits(digits) ? parse_int(digits).value_or(-1) : -1;
    return (width == 5 || width == 6) && number >= 0;
  };
  const std::size_t behind = of + kOf.size();
  if (!read(name.substr(dash + 1, of - dash - 1), shard.number, shard.number_digits) ||
      !read(name.substr(behind, dot - behind), shard.count, shard.count_digits))
    return std::nullopt;
  return shard;
}

std::vector<std::string> index_names_in(const std::filesystem::path& directory, std::string_view extension) {
  std::vector<std::string> names = names_in(directory);
  std::erase_if(names, [&](const std::string& name) {
    std::error_code unreadable;
    return !name.ends_with(std::string(extension) + ".index.json") ||
           std::filesystem::is_directory(directory / name, unreadable);
  });
  return names;
}

std::string to_string(const WeightShard& shard) {
  return fmt::format("{}-{:0{}}-of-{:0{}}{}", shard.stem, shard.number, shard.number_digits, shard.count,
                     shard.count_digits, shard.extension);
}

std::optional<std::string> missing_shard(const std::filesystem::path& directory, std::string_view name) {
  std::optional<WeightShard> shard = parse_weight_shard(name);
  if (!shard) return std::nullopt;
  for (shard->number = 1; shard->number <= shard->count; ++shard->number) {
    std::string other = to_string(*shard);
    if (!std::filesystem::exists(directory / other)) return other;
  }
  return std::nullopt;
}

}  // namespace accel::ckpt
