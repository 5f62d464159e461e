#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "base/interrupt.hpp"
#include "ckpt/io/file_cache.hpp"
#include "ckpt/read/listed_checkpoint.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/safetensors/header.hpp"
#include "ckpt/store/weight_index.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

Extent extent_of(const std::string& file, const SafetensorsHeader& header, const SafetensorsEntry& entry) {
  return {file, header.buffer_offset + entry.begin, Box::whole(entry.shape), row_major_strides(entry.shape)};
}

std::vector<std::string> names_of(const SafetensorsHeader& header) {
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : header.entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  return names;
}

// Adds all tensors of a file to the listing.
void add_file(Listing& listing, const std::string& file, const SafetensorsHeader& header) {
  for (const SafetensorsEntry& entry : header.entries) {
    check_interrupted();
    std::vector<Extent> extents;
    if (checked_numel(entry.shape) > 0) extents.push_back(extent_of(file, header, entry));
    listing.tensors.push_back(
        {{entry.name}, entry.dtype, entry.shape, std::move(extents), {}, entry.obstacle});
  }
  for (const auto& [key, value] : header.metadata) listing.metadata.emplace(key, value);
}

}  // namespace

std::unique_ptr<Checkpoint> open_safetensors(const fs::path& file) {
  Listing listing{Kind::kSafetensors, file, parent_of(file), {}, {}, {}};
  add_file(listing, file.filename().string(), read_safetensors_header(File::open_read(file)));
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

std::unique_ptr<Checkpoint> open_sharded_safetensors(const fs::path& directory) {
  Listing listing{Kind::kSafetensorsSharded, directory, directory, {}, {}, {}};
  FileCache files(directory);
  const std::vector<std::string> indexes = index_names_in(directory, ".safetensors");
  if (indexes.size() > 1) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' has several models: {} and {}", directory.string(), indexes[0], indexes[1]))
        .hint("put each in a directory of its own");
  }
  if (!indexes.empty()) {
    const WeightIndex index = read_weight_index(directory / indexes.front());
    for (const std::string& file : index.file_names()) {
      const SafetensorsHeader header = read_safetensors_header(files.open(file));
      check_weight_index(index, file, names_of(header));
      add_file(listing, file, header);
    }
    return std::make_unique<ListedCheckpoint>(std::move(listing));
  }

  std::map<std::string, std::string> file_of;
  for (const std::string& file : files_in(directory, "", ".safetensors")) {
    if (const std::optional<std::string> missing = missing_shard(directory, file)) {
      throw Error(ErrorKind::kMissing, fmt::format("'{}' has no {}, which belongs to the set of {}",
                                                   directory.string(), *missing, file))
          .hint("bring back the file, or give the one file that is meant");
    }
    const SafetensorsHeader header = read_safetensors_header(files.open(file));
    for (const SafetensorsEntry& entry : header.entries) {
      const auto [other, fresh] = file_of.emplace(entry.name, file);
      if (fresh) continue;
      throw Error(ErrorKind::kFailure,
                  fmt::format("'{}' has no index, and tensor '{}' is both in {} and in {}",
                              directory.string(), entry.name, other->second, file))
          .hint("give the file that is meant");
    }
    add_file(listing, file, header);
  }
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

}  // namespace accel::ckpt
