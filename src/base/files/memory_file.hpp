#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/files/fd.hpp"

namespace accel {

/// A file that is in memory alone. It has a path while this object lives, under which this process can open
/// it for reading. Nothing is left of it after the process, however that ends.
class MemoryFile {
 public:
  /// A file with these bytes. Throws Error if there is no memory for them.
  explicit MemoryFile(std::span<const std::byte> bytes);

  [[nodiscard]] std::filesystem::path path() const;

 private:
  Fd fd_;
};

}  // namespace accel
