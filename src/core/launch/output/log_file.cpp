#include "core/launch/output/log_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.hpp"

namespace accel::launch {
namespace {

namespace fs = std::filesystem;

fs::path numbered(const fs::path& path, int number) {
  return fs::path(fmt::format("{}.{}", path.string(), number));
}

Fd opened(const fs::path& path) {
  // Without O_NONBLOCK, opening a FIFO would wait for its reader.
  return Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
}

}  // namespace

LogFile::LogFile(const fs::path& path, const LogRotation& rotation,
                 std::function<void(std::string warning)> warn)
    : path_(path), rotation_(rotation), warn_(std::move(warn)) {
  if (path.empty()) return;
  fd_ = opened(path);
  if (!fd_) throw system_error("write", path.string(), errno);
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0 || !S_ISREG(status.st_mode))
    throw Error(ErrorKind::kFailure,
                fmt::format("cannot write '{}': it is not a regular file", path.string()));
  if (::ftruncate(fd_.get(), 0) != 0) throw system_error("write", path.string(), errno);
  std::error_code error;
  for (int i = 1; fs::remove(numbered(path, i), error);) ++i;
}

void LogFile::write(std::string_view chunk) {
  while (fd_ && !chunk.empty()) {
    const std::size_t length = length_that_fits(chunk);
    append(chunk.substr(0, length));
    chunk.remove_prefix(length);
    if (!chunk.empty() && fd_) rotate();
  }
}

/// How many bytes of `chunk` go into the file before it is rotated: all of them if they fit.
std::size_t LogFile::length_that_fits(std::string_view chunk) const {
  const std::uint64_t limit = rotation_.max_bytes;
  if (limit == 0) return chunk.size();
  const std::size_t room = static_cast<std::size_t>(limit - std::min(limit, bytes_));
  if (chunk.size() <= room) return chunk.size();
  // The last line end that fits.
  if (const std::size_t end = chunk.substr(0, room).rfind('\n'); end != std::string_view::npos)
    return end + 1;
  // The next line does not fit: it begins a new file.
  if (ends_at_line_end_ && bytes_ > 0) return 0;
  // A line that has begun in the file goes on to its end there.
  const std::uint64_t most = limit + kLongestLine;
  const std::size_t left = static_cast<std::size_t>(most - std::min(most, bytes_));
  const std::size_t end = chunk.find('\n');
  return std::min({end == std::string_view::npos ? chunk.size() : end + 1, left, chunk.size()});
}

void LogFile::append(std::string_view bytes) {
  while (fd_ && !bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      // A full disk must not end the training.
      warn_(fmt::format("cannot write '{}': {}; this log ends here", path_.string(), std::strerror(errno)));
      fd_.reset();
      return;
    }
    bytes_ += static_cast<std::uint64_t>(written);
    ends_at_line_end_ = bytes[static_cast<std::size_t>(written) - 1] == '\n';
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void LogFile::rotate() {
  std::error_code error;
  for (int i = rotation_.old_files - 1; i >= 0 && !error; --i) {
    fs::rename(i == 0 ? path_ : numbered(path_, i), numbered(path_, i + 1), error);
    // There may be fewer old files than may stay, and somebody may have moved the file away.
    if (error == std::errc::no_such_file_or_directory) error.clear();
  }
  Fd next;
  if (!error) {
    next = Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666));
    if (!next) error = std::error_code(errno, std::generic_category());
  }
  if (error) {
    warn_(fmt::format("cannot rotate '{}': {}; it grows without a limit", path_.string(), error.message()));
    rotation_.max_bytes = 0;
    return;
  }
  fd_ = std::move(next);
  bytes_ = 0;
  ends_at_line_end_ = true;
}

}  // namespace accel::launch
