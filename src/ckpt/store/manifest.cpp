#include "ckpt/store/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "base/text.hpp"
#include "ckpt/store/newer_version.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr int kIndent = 2;
constexpr std::uint64_t kLimitBytes = std::uint64_t{1} << 30;

bool leaves_directory(const std::string& name) {
  const std::filesystem::path path(name);
  return path.empty() || path.is_absolute() || name.find('\0') != std::string::npos ||
         std::find(path.begin(), path.end(), "..") != path.end();
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
  const std::string text = read_text_file(path, kLimitBytes);
  Manifest manifest;
  try {
    const json document = parse_json(text);
    if (const json& version = document.at("version"); version != kVersion) {
      if (version.is_number_unsigned() && version > kVersion) throw newer_version(version.dump(), kVersion);
      throw Error(ErrorKind::kCorrupt, fmt::format("is of version {}", version.dump()));
    }
    manifest.step = document.value("step", manifest.step);
    manifest.world_size = document.value("world_size", manifest.world_size);
    for (const json& file : document.at("files")) {
      const auto name = file.at("name").get<std::string>();
      if (leaves_directory(name)) {
        throw Error(ErrorKind::kCorrupt, fmt::format("lists '{}', which is not in the directory", name));
      }
      manifest.files[name] = {file.at("bytes").get<std::uint64_t>(), file.at("crc32").get<std::uint32_t>()};
    }
    for (const auto& [name, tensor] : document.at("tensors").items()) {
      manifest.tensors[name] = {tensor.at("dtype").get<std::string>(),
                                tensor.at("shape").get<std::vector<std::int64_t>>()};
    }
    manifest.tied = document.value("tied", manifest.tied);
  } catch (const json::exception& e) {
    throw Error(ErrorKind::kCorrupt, fmt::format("cannot be read: {}", without_json_tag(e.what())));
  }
  return manifest;
}

}  // namespace accel::ckpt
