#include "ckpt/remove_checkpoint.hpp"

#include <fmt/format.h>

#include "base/directory.hpp"
#include "base/error.hpp"

namespace accel::ckpt {

void check_removable(const Checkpoint& checkpoint) {
  const bool sharded = checkpoint.kind() == Kind::kDcp;
  if (std::filesystem::is_symlink(checkpoint.path())) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is a link; what it leads to is not removed", checkpoint.path().string()))
        .hint("name the checkpoint itself, or leave out --remove-checkpoint-dir");
  }
  if (sharded) {
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint.path())) {
      if (!entry.is_directory()) continue;
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' is not removed: '{}' in it is no part of the checkpoint",
                              checkpoint.path().string(), entry.path().filename().string()))
          .hint("leave out --remove-checkpoint-dir, and remove it yourself");
    }
    return;
  }
  if (!std::filesystem::is_directory(checkpoint.path())) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' is no sharded checkpoint; other files may lie in its directory, so it is not "
                          "removed",
                          checkpoint.path().string()))
      .hint("leave out --remove-checkpoint-dir, and remove it yourself");
}

void remove_checkpoint(const Checkpoint& checkpoint) {
  check_removable(checkpoint);
  discard_tree(checkpoint.path());
}

}  // namespace accel::ckpt
