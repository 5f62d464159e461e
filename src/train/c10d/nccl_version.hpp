#pragma once

#include <optional>
#include <string>

namespace accel::train {

/// A version of NCCL, such as 2.27.3.
struct NcclVersion {
  int major = 0;
  int minor = 0;
  int patch = 0;

  /// From what ncclGetVersion() gives: 22703, and 2708 before 2.9.
  static NcclVersion of_code(int code);
  [[nodiscard]] std::string text() const;
  auto operator<=>(const NcclVersion&) const = default;
};

/// The three versions of NCCL that meet in one process.
struct NcclVersions {
  NcclVersion header;    ///< Of the nccl.h that accel-cuda.so was compiled with.
  NcclVersion libtorch;  ///< Of the nccl.h that libtorch was compiled with.
  NcclVersion library;   ///< Of the libnccl.so that is loaded.
};

/// What is wrong with them; nothing if they fit together. c10d's classes have members that depend on nccl.h,
/// so accel and libtorch must have been compiled with the same major and minor version. The library may be
/// newer, of the same major version, but not older: functions would be missing.
std::optional<std::string> nccl_mismatch(const NcclVersions& versions);

}  // namespace accel::train
