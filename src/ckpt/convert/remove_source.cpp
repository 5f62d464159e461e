#include "ckpt/convert/remove_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "ckpt/dcp/metadata_files.hpp"
#include "ckpt/store/manifest.hpp"

namespace accel::ckpt {

namespace {

namespace fs = std::filesystem;

// Whether an entry of the directory is a file of the sharded checkpoint. `accel verify` finds data files to
// which nothing refers.
bool is_part(const fs::directory_entry& entry, const std::vector<std::string>& metadata) {
  const std::string name = entry.path().filename().string();
  const bool describes = std::find(metadata.begin(), metadata.end(), name) != metadata.end();
  return !entry.is_directory() && (describes || name.ends_with(".distcp") || name == kManifestName);
}

}  // namespace

void check_removable(const Checkpoint& checkpoint) {
  const fs::path& path = checkpoint.path();
  const fs::path named = path.has_filename() ? path : path.parent_path();
  if (fs::is_symlink(named)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is a link, and its target is not removed", path.string()))
        .hint("name the checkpoint itself, or leave out --remove-checkpoint-dir");
  }
  if (checkpoint.kind() != Kind::kDcp) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is not the directory of a sharded checkpoint, and only that can be removed",
                            path.string()))
        .hint("leave out --remove-checkpoint-dir, and remove it yourself");
  }
  const std::vector<std::string> metadata = dcp_metadata_names(path);
  for (const auto& entry : fs::directory_iterator(path)) {
    if (is_part(entry, metadata)) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is not removed: '{}' in it is not part of the checkpoint", path.string(),
                            entry.path().filename().string()))
        .hint("leave out --remove-checkpoint-dir, and remove it yourself");
  }
}

void remove_checkpoint(const Checkpoint& checkpoint) {
  check_removable(checkpoint);
  discard_tree(fs::canonical(checkpoint.path()));
}

}  // namespace accel::ckpt
