#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/files/fd.hpp"

namespace accel::launch {

/// When a log file gives way to a new one.
struct LogRotation {
  std::uint64_t max_bytes = 0;  ///< A file does not become larger; 0 for any size.
  int old_files = 4;            ///< How many earlier files stay: NAME.1, the newest of them, to NAME.N.
};

/// A log file of one stream of a worker. It gets every byte as it comes.
///
/// A file that reaches the limit of its size is rotated: NAME becomes NAME.1, NAME.1 becomes NAME.2, and the
/// oldest one is removed. The cut lies at the end of a line. A line that does not fit into a file begins a
/// new one, which may become larger than the limit by kLongestLine; a longer line is cut.
class LogFile {
 public:
  static constexpr std::uint64_t kLongestLine = 1 << 20;

  /// Opens no file.
  LogFile() = default;
  /// Opens an empty file and removes those that an earlier run has rotated. Throws Error. `warn` takes what
  /// goes wrong later.
  LogFile(const std::filesystem::path& path, const LogRotation& rotation,
          std::function<void(std::string warning)> warn);

  /// Appends `chunk`. A file that cannot be written ends here, with a warning, and the run goes on. A file
  /// that cannot be rotated grows instead.
  void write(std::string_view chunk);
  void close() { fd_.reset(); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void append(std::string_view bytes);
  void rotate();
  [[nodiscard]] std::size_t length_that_fits(std::string_view chunk) const;

  Fd fd_;
  std::filesystem::path path_;
  LogRotation rotation_;
  std::function<void(std::string warning)> warn_;
  std::uint64_t bytes_ = 0;       ///< The size of the file.
  bool ends_at_line_end_ = true;  ///< The file is empty, or its last byte ends a line.
};

}  // namespace accel::launch
