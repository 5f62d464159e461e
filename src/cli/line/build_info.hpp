#pragma once

#include <string_view>

namespace accel::cli {

/// What the program was built from. `commit` is "unknown" if the sources were not in a Git repository, and
/// ends in "-dirty" if they had changes that were not committed. `libtorch` and `nccl` are the versions that
/// accel-worker was compiled with, "none" if it was not built.
struct BuildInfo {
  std::string_view version;
  std::string_view commit;
  std::string_view libtorch;
  std::string_view nccl;
};

extern const BuildInfo kBuildInfo;

}  // namespace accel::cli
