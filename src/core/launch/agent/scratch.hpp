#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/environment.hpp"
#include "base/files/leftover.hpp"

namespace accel::launch {

/// The directory for temporary files: TMPDIR, or /tmp. The path is absolute, so that a program that changes
/// its directory finds what is in it. Throws Error (kUsage) if TMPDIR is not a directory.
[[nodiscard]] std::filesystem::path temporary_folder(const Environment& environment);

/// A temporary directory `accel-HOST-UID-XXXXXX` below `folder`, which its owner alone may list. The
/// destructor removes it with all it holds. A flock on it shows that its owner lives. The constructor first
/// removes those of this user and host whose owners are dead, that is, were killed together with their
/// guardians.
class Scratch {
 public:
  explicit Scratch(const std::filesystem::path& folder);
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::optional<LeftoverLock> lock_;
};

}  // namespace accel::launch
