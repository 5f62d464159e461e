#include "report/metrics_follower.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <span>

#include "base/error.hpp"
#include "base/files/file.hpp"

namespace accel {
namespace {

/// So much is read at once.
constexpr std::uint64_t kPart = std::uint64_t{64} << 20;

}  // namespace

bool MetricsFollower::read() {
  const std::filesystem::path path = directory_ / "metrics.jsonl";
  if (!is_run(directory_)) return false;
  const File file = File::open_read(path);
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) throw system_error("stat", path.string(), errno);
  const std::uint64_t size = file.size();
  if (status.st_ino != inode_ || size < read_bytes_) {
    history_ = RunHistory();
    history_.settings = read_settings(directory_);
    inode_ = status.st_ino;
    read_bytes_ = 0;
    lines_ = 0;
  }
  bool has_news = false;
  while (read_bytes_ < size) {
    std::string text(std::min(kPart, size - read_bytes_), '\0');
    file.read_at(read_bytes_, std::as_writable_bytes(std::span(text)));
    const AddedLines added = add_metrics(history_, text, path.string(), lines_ + 1);
    if (added.lines == 0) break;
    read_bytes_ += added.bytes;
    lines_ += added.lines;
    has_news = true;
  }
  return has_news;
}

}  // namespace accel
