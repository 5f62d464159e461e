#include "ckpt/store/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "base/metadata_limit.hpp"
#include "base/text.hpp"
#include "ckpt/store/json_count.hpp"
#include "ckpt/store/newer_version.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr int kIndent = 2;

bool leaves_directory(const std::string& name) {
  const std::filesystem::path path(name);
  return path.empty() || path.is_absolute() || name.find('\0') != std::string::npos ||
         std::find(path.begin(), path.end(), "..") != path.end();
}

ManifestFile file_of(const json& file, const std::string& name) {
  constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMostCrc = std::numeric_limits<std::uint32_t>::max();
  const auto number = [&](const char* key, std::int64_t most) {
    return count_of(file.at(key), fmt::format("'{}' of '{}'", key, name), 0, most);
  };
  return {static_cast<std::uint64_t>(number("bytes", kMostBytes)),
          static_cast<std::uint32_t>(number("crc32", kMostCrc))};
}

std::vector<std::int64_t> shape_at(const json& tensor, const std::string& name) {
  const json& sizes = tensor.at("shape");
  const std::string what = fmt::format("'shape' of '{}'", name);
  if (!sizes.is_array()) throw_corrupt(fmt::format("{} is {}, not a list", what, sizes.dump()));
  std::vector<std::int64_t> shape;
  for (const json& size : sizes)
    shape.push_back(count_of(size, what, 0, std::numeric_limits<std::int64_t>::max()));
  return shape;
}

}  // namespace

std::string encode_manifest(const Manifest& manifest) {
  json document = {{"version", kVersion},
                   {"step", manifest.step},
                   {"world_size", manifest.world_size},
                   {"files", json::array()},
                   {"tensors", json::object()}};
  for (const auto& [name, file] : manifest.files)
    document["files"].push_back({{"name", name}, {"bytes", file.bytes}, {"crc32", file.crc32}});
  for (const auto& [name, tensor] : manifest.tensors)
    document["tensors"][name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}};
  if (!manifest.tied.empty()) document["tied"] = manifest.tied;
  return document.dump(kIndent);
}

Manifest parse_manifest(const std::filesystem::path& path) {
  // The parser takes twice the text at least, so that a text beyond that is not read.
  const std::uint64_t bytes = File::open_read(path).size();
  check_metadata_bytes("the file", 2 * bytes);
  const std::string text = read_text_file(path, bytes);
  Manifest manifest;
  try {
    const json document = parse_json(text);
    if (const json& version = document.at("version"); version != kVersion) {
      if (version.is_number_unsigned() && version > kVersion) throw newer_version(version.dump(), kVersion);
      throw Error(ErrorKind::kCorrupt, fmt::format("is of version {}", version.dump()));
    }
    const auto count = [&](const char* key, std::int64_t most) {
      const auto found = document.find(key);
      return found == document.end() ? 0 : count_of(*found, fmt::format("'{}'", key), 0, most);
    };
    manifest.step = count("step", std::numeric_limits<std::int64_t>::max());
    manifest.world_size = static_cast<int>(count("world_size", std::numeric_limits<int>::max()));
    for (const json& file : document.at("files")) {
      const auto name = file.at("name").get<std::string>();
      if (leaves_directory(name)) {
        throw Error(ErrorKind::kCorrupt, fmt::format("lists '{}', which is not in the directory", name));
      }
      manifest.files[name] = file_of(file, name);
    }
    for (const auto& [name, tensor] : document.at("tensors").items()) {
      manifest.tensors[name] = {tensor.at("dtype").get<std::string>(), shape_at(tensor, name)};
    }
    manifest.tied = document.value("tied", manifest.tied);
  } catch (const json::exception& e) {
    throw Error(ErrorKind::kCorrupt, fmt::format("cannot be read: {}", without_json_tag(e.what())));
  }
  return manifest;
}

}  // namespace accel::ckpt
