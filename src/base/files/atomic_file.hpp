#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "base/files/leftover.hpp"

namespace accel {

/// A file that appears under its name complete and durable, or not at all.
///
/// It is written under a temporary name in the same directory. commit() syncs it, renames it and syncs the
/// directory. Without commit() the destructor removes the temporary file, and the target stays as it was. The
/// constructor removes what a killed process left of its work on the same target.
class AtomicFile {
 public:
  enum class Existing { kRefuse, kReplace };
  enum class Parents { kRequire, kMake };

  /// Opens the temporary file. kMake makes missing directories above it, and removes them again without
  /// commit(); kRequire makes a missing one an Error. Under kRefuse an existing target is an Error, both here
  /// and, if it appears meanwhile, at commit().
  AtomicFile(std::filesystem::path target, Existing existing, Parents parents = Parents::kRequire);
  AtomicFile(AtomicFile&&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  /// The temporary file, for positional writes.
  [[nodiscard]] File& file() { return *file_; }
  /// Writes `bytes` behind all that append() wrote before.
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text);
  /// fsync, rename, fsync of the directory. Nothing may be written afterwards. An Error leaves the target as
  /// it was, unless the message says that it is complete and only its durability is unknown.
  void commit();

  [[nodiscard]] const std::filesystem::path& target() const { return target_; }

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  Existing existing_;
  NewDirectories parents_;
  std::optional<File> file_;
  std::optional<LeftoverLock> lock_;
  std::uint64_t end_ = 0;
};

/// Writes `text` to `path` through an AtomicFile, replacing what was there.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace accel
