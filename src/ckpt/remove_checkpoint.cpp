#include "ckpt/remove_checkpoint.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "base/directory.hpp"
#include "base/error.hpp"
#include "ckpt/verify_job.hpp"

namespace accel::ckpt {

namespace {

namespace fs = std::filesystem;

// Whether an entry of a sharded checkpoint's directory is a file of the checkpoint.
bool is_part(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  return !entry.is_directory() &&
         (name.ends_with(".metadata") || name.ends_with(".distcp") || name == kManifestName);
}

}  // namespace

void check_removable(const Checkpoint& checkpoint) {
  const fs::path& path = checkpoint.path();
  if (fs::is_symlink(path)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is a link; what it leads to is not removed", path.string()))
        .hint("name the checkpoint itself, or leave out --remove-checkpoint-dir");
  }
  if (checkpoint.kind() == Kind::kDcp) {
    for (const auto& entry : fs::directory_iterator(path)) {
      if (is_part(entry)) continue;
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' is not removed: '{}' in it is not part of the checkpoint", path.string(),
                              entry.path().filename().string()))
          .hint("leave out --remove-checkpoint-dir, and remove it yourself");
    }
    return;
  }
  const bool of_ranks = checkpoint.kind() == Kind::kLocal || checkpoint.kind() == Kind::kDtensor;
  if (!fs::is_directory(path) && !of_ranks) return;
  throw Error(
      ErrorKind::kUsage,
      fmt::format("'{}' is not a sharded checkpoint and not one file; other files may lie beside its own, "
                  "so it is not removed",
                  path.string()))
      .hint("leave out --remove-checkpoint-dir, and remove it yourself");
}

void remove_checkpoint(const Checkpoint& checkpoint) {
  check_removable(checkpoint);
  discard_tree(checkpoint.path());
}

}  // namespace accel::ckpt
