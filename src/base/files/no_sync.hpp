#pragma once

#include <cerrno>

namespace accel {

/// Whether fsync(2) failed with `error` because the file system has none, as some of networks and of FUSE.
/// There is no other way on it.
[[nodiscard]] inline bool has_no_sync(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

}  // namespace accel
