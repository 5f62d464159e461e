#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/files/leftover.hpp"

namespace accel::launch {

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
