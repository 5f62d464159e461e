#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.hpp"
#include "ckpt/verify/finding.hpp"

namespace accel::ckpt {

/// What was found of one checkpoint, or model file.
struct Verified {
  std::filesystem::path path;
  std::string kind;  ///< As name_of(Kind), or "manifest".
  std::uint64_t tensors = 0;
  std::uint64_t files = 0;         ///< Those that belong to it and are there.
  std::uint64_t bytes = 0;         ///< Of those.
  std::vector<Finding> findings;   ///< Sorted.
  std::vector<std::string> notes;  ///< What could not be looked into, which is no defect.
};

struct VerifyReport {
  std::vector<Verified> checkpoints;  ///< Sorted by path.
  std::uint64_t summed_bytes = 0;     ///< Read and compared with a checksum.
  double seconds = 0;

  [[nodiscard]] std::size_t findings() const;
};

struct VerifyOptions {
  unsigned threads = 0;  ///< 0: default_threads().
  int depth = 3;         ///< Levels below a directory that are looked into.
  Progress::Mode progress = Progress::Mode::kOff;
};

/// Checks a checkpoint, a model file, or all of those in a directory, and lists everything that is wrong
/// (docs/formats.md, "Verifying"). A file of a set (a shard, a rank's file, an index) stands for the set, and
/// the manifest of the directory above says which files were saved. Memory does not grow with the data.
/// Nothing in the files is executed. Throws Error only if there is nothing to verify (kMissing, kCorrupt) or
/// if the system fails.
[[nodiscard]] VerifyReport verify(const std::filesystem::path& path, const VerifyOptions& options);

}  // namespace accel::ckpt
