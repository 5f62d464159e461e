#include "ckpt/checkpoint_kind.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/file.hpp"
#include "ckpt/endian.hpp"
#include "ckpt/safetensors.hpp"
#include "ckpt/zip_index.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr int kSearchDepth = 3;

std::vector<fs::path> sorted_entries(const fs::path& directory) {
  std::vector<fs::path> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

void search(const fs::path& directory, int depth, std::vector<fs::path>& found) {
  if (fs::exists(directory / ".metadata")) {
    found.push_back(directory);
    return;
  }
  if (depth == 0) return;
  for (const fs::path& entry : sorted_entries(directory)) {
    if (fs::is_directory(entry)) search(entry, depth - 1, found);
  }
}

Kind kind_of_file(const fs::path& path) {
  const File file = File::open_read(path);
  const std::uint64_t bytes = file.size();
  const FileWindow window(file, 0, bytes);
  if (looks_like_zip(window)) {
    const ZipIndex zip(window);
    if (zip.find("data.pkl") == nullptr) return Kind::kUnknown;
    return zip.find("constants.pkl") != nullptr ? Kind::kTorchScript : Kind::kTorch;
  }
  if (path.extension() == ".safetensors") return Kind::kSafetensors;
  if (bytes < 9) return Kind::kUnknown;
  const auto start = window.read(0, 9);
  const bool plausible = get_uint(start, 0, 8) <= kSafetensorsHeaderLimit && start[8] == std::byte{'{'};
  return plausible ? Kind::kSafetensors : Kind::kUnknown;
}

bool is_optimizer(const fs::path& directory) {
  return directory.filename().string().starts_with("optimizer");
}

// Nothing to merge: says what is there instead.
[[noreturn]] void nothing_found(const fs::path& path) {
  for (const fs::path& entry : sorted_entries(path)) {
    const std::string name = entry.filename().string();
    if (entry.extension() == ".distcp") {
      throw Error(ErrorKind::kMissing, fmt::format("'{}' has {} but no .metadata", path.string(), name))
          .hint("the save did not finish; use an earlier checkpoint");
    }
    if (entry.extension() == ".bin" && name.starts_with("pytorch_model_fsdp")) {
      const bool local = name.find("_rank") != std::string::npos;
      throw Error(ErrorKind::kFailure, fmt::format("'{}' is a {} checkpoint; merging those is not there yet",
                                                   entry.string(), local ? "local" : "full"));
    }
  }
  throw Error(ErrorKind::kMissing,
              fmt::format("'{}' holds no sharded checkpoint (no .metadata in it)", path.string()))
      .hint("give the directory that has the .distcp files, or one above it");
}

}  // namespace

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kDcp:
      return "dcp";
    case Kind::kDirectory:
      return "directory";
    case Kind::kSafetensors:
      return "safetensors";
    case Kind::kTorch:
      return "torch";
    case Kind::kTorchScript:
      return "torchscript";
    case Kind::kUnknown:
      break;
  }
  return "unknown";
}

Kind kind_of(const fs::path& path) {
  if (!fs::exists(path)) throw Error(ErrorKind::kMissing, fmt::format("'{}' is not there", path.string()));
  if (fs::is_directory(path)) return fs::exists(path / ".metadata") ? Kind::kDcp : Kind::kDirectory;
  try {
    return kind_of_file(path);
  } catch (Error& e) {
    e.add_context(fmt::format("'{}'", path.string()));
    throw;
  }
}

std::vector<fs::path> find_dcp_directories(const fs::path& directory) {
  std::vector<fs::path> found;
  search(directory, kSearchDepth, found);
  return found;
}

fs::path find_model_directory(const fs::path& path) {
  const Kind kind = kind_of(path);
  if (kind == Kind::kDcp) return path;
  if (kind != Kind::kDirectory) {
    throw Error(ErrorKind::kFailure,
                fmt::format("'{}' is one file ({}), not a sharded checkpoint", path.string(), name_of(kind)));
  }
  std::vector<fs::path> found = find_dcp_directories(path);
  if (found.empty()) nothing_found(path);
  const bool all_optimizers = std::all_of(found.begin(), found.end(), is_optimizer);
  if (!all_optimizers) std::erase_if(found, is_optimizer);
  if (found.size() > 1) {
    std::vector<std::string> names;
    names.reserve(found.size());
    for (const fs::path& directory : found) names.push_back(directory.string());
    throw Error(ErrorKind::kUsage, fmt::format("'{}' holds {} checkpoints: {}", path.string(), found.size(),
                                               fmt::join(names, ", ")))
        .hint("name one of them");
  }
  return found.front();
}

}  // namespace accel::ckpt
