#include "core/launch/terminal.hpp"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace accel::core {

void Terminal::push(int fd, std::string_view text) {
  if (text.empty() || closed_) return;
  constexpr std::size_t kLargest = 1 << 16;
  if (queue_.empty() || queue_.back().fd != fd || queue_.back().text.size() > kLargest)
    queue_.push_back({fd, {}});
  queue_.back().text += text;
  pending_bytes_ += text.size();
}

void Terminal::pump() {
  while (!queue_.empty()) {
    const Item& item = queue_.front();
    pollfd ready{item.fd, POLLOUT, 0};
    if (::poll(&ready, 1, 0) != 1) return;
    // The descriptor may be shared with other processes, so it is not made non-blocking. A pipe that polls
    // writable has room for PIPE_BUF bytes, so that much does not block.
    const std::size_t chunk = std::min<std::size_t>(item.text.size() - front_written_, PIPE_BUF);
    const ssize_t written = ::write(item.fd, item.text.data() + front_written_, chunk);
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) return;
    const std::size_t done =
        written < 0 ? item.text.size() - front_written_ : static_cast<std::size_t>(written);
    front_written_ += done;
    pending_bytes_ -= done;
    if (front_written_ < item.text.size()) continue;
    queue_.pop_front();
    front_written_ = 0;
  }
}

void Terminal::close() {
  closed_ = true;
  queue_.clear();
  front_written_ = 0;
  pending_bytes_ = 0;
}

}  // namespace accel::core
