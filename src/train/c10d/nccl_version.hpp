#pragma once

#include <optional>
#include <string>

namespace accel::train {

/// A version of NCCL, such as 2.27.3.
struct NcclVersion {
  int major = 0;
  int minor = 0;
  int patch = 0;

  /// Decodes the result of ncclGetVersion(): 22703 is 2.27.3, and before 2.9 the code 2708 is 2.7.8.
  static NcclVersion of_code(int code);
  [[nodiscard]] std::string text() const;
  auto operator<=>(const NcclVersion&) const = default;
};

/// The three versions of NCCL in one process.
struct NcclVersions {
  NcclVersion header;    ///< The nccl.h that accel-cuda.so was compiled with.
  NcclVersion libtorch;  ///< The nccl.h that libtorch was compiled with.
  NcclVersion library;   ///< The libnccl.so that is loaded.
};

/// Returns what is wrong with the versions, or nullopt if they fit together. c10d's classes have members that
/// depend on nccl.h, so accel and libtorch must have been compiled with the same major and minor version. The
/// library may be newer within the major version, but not older, because functions would be missing.
std::optional<std::string> nccl_mismatch(const NcclVersions& versions);

}  // namespace accel::train
