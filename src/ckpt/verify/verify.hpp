#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/progress.hpp"
#include "ckpt/verify/job.hpp"

namespace accel::ckpt {

struct VerifyReport {
  std::vector<Verified> checkpoints;  ///< The checkpoints, sorted by path.
  std::uint64_t summed_bytes = 0;     ///< Bytes that were read and compared with a checksum.
  double seconds = 0;

  [[nodiscard]] std::size_t findings() const;
};

struct VerifyOptions {
  unsigned threads = 0;  ///< The number of threads; 0 stands for default_threads().
  int depth = 3;         ///< How many levels below a directory are searched.
  Progress::Mode progress = Progress::Mode::kOff;
};

/// Verifies a checkpoint, a model file, or all of those in a directory, and lists every defect
/// (docs/formats.md, "Verifying"). A file of a set (a shard, a rank's file, an index) stands for the set. If
/// the directory above has a manifest, the files are compared with it, too. Memory does not grow with the
/// data. Nothing in the files is executed. Throws Error only if there is nothing to verify (kMissing,
/// kCorrupt) or if the system fails.
[[nodiscard]] VerifyReport verify(const std::filesystem::path& path, const VerifyOptions& options);

}  // namespace accel::ckpt
