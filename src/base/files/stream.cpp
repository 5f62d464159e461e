#include "base/files/stream.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.hpp"
#include "base/files/fd.hpp"
#include "base/interrupt.hpp"

namespace accel {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
constexpr int kWaitMs = 100;  // A signal may come between check_interrupted() and poll().

/// Waits until there is something to read, or the end. A FIFO that nobody has opened for writing yet is not
/// at its end.
void wait_for_input(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  int ready = 0;
  while (ready <= 0) {
    check_interrupted();
    ready = ::poll(&waiting, 1, kWaitMs);
  }
}

}  // namespace

std::string read_text_stream(const std::filesystem::path& path, std::uint64_t limit_bytes) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) throw system_error("open", path.string(), errno);
  std::string text;
  while (true) {
    wait_for_input(fd.get());
    const std::size_t done = text.size();
    text.resize(done + kPieceBytes);
    const ssize_t n = ::read(fd.get(), text.data() + done, kPieceBytes);
    const int error = errno;
    text.resize(done + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0) return text;
    if (n < 0 && error != EINTR && error != EAGAIN) throw system_error("read", path.string(), error);
    if (text.size() > limit_bytes) {
      throw Error(ErrorKind::kCorrupt, fmt::format("'{}' has more than {} bytes, the most that are expected",
                                                   path.string(), limit_bytes));
    }
  }
}

}  // namespace accel
