#include "core/launch/output/terminal.hpp"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "base/host/threads.hpp"
#include "base/terminal.hpp"
#include "core/launch/output/pipe.hpp"

namespace accel::launch {

namespace {

/// A new descriptor of a terminal; none for anything else. Other processes share the inherited descriptor, so
/// it must not become non-blocking.
Fd opened_again(int fd) {
  if (::isatty(fd) == 0) return {};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return Fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

bool is_same_file(int one, int other) {
  struct stat first {};
  struct stat second {};
  return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 && S_ISREG(first.st_mode) &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

/// Writes to `to` what comes from the pipe `from`. What a full disk does not take is dropped.
void copy_all(int from, int to) {
  std::array<char, 1 << 16> buffer{};
  for (ssize_t count = 0; (count = ::read(from, buffer.data(), buffer.size())) != 0;) {
    for (ssize_t done = 0; done < count;) {
      const ssize_t written = ::write(to, buffer.data() + done, static_cast<std::size_t>(count - done));
      if (written < 0 && errno != EINTR) break;
      done += std::max<ssize_t>(written, 0);
    }
  }
}

}  // namespace

Terminal::Terminal(int out_fd, int err_fd)
    : own_out_(opened_again(out_fd)),
      own_err_(opened_again(err_fd)),
      out_fd_(own_out_ ? own_out_.get() : through_pipe(out_fd)),
      err_fd_(own_err_                       ? own_err_.get()
              : is_same_file(out_fd, err_fd) ? out_fd_
                                             : through_pipe(err_fd)) {}

Terminal::~Terminal() {
  for (FileCopy& file : files_) {
    file.pipe.reset();
    if (closed_) {
      file.end.wait_for(kLastTextTime);
    } else {
      file.end.wait();
    }
  }
}

int Terminal::through_pipe(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return fd;
  Pipe pipe = make_pipe();
  auto copy = std::make_shared<std::packaged_task<void()>>(
      [fd, read = std::make_shared<Fd>(std::move(pipe.read))] { copy_all(read->get(), fd); });
  files_.push_back({std::move(pipe.write), copy->get_future()});
  thread_without_signals([copy] { (*copy)(); }).detach();
  return files_.back().pipe.get();
}

void Terminal::push(int fd, std::string_view text) {
  if (text.empty() || closed_) return;
  if (fd == err_fd_ || own_out_) {
    erase_below();
    ends_at_line_end_ = text.back() == '\n';
  }
  append(fd, text);
}

void Terminal::append(int fd, std::string_view text) {
  constexpr std::size_t kLargest = 1 << 16;
  if (queue_.empty() || queue_.back().fd != fd || queue_.back().text.size() > kLargest)
    queue_.push_back({fd, {}});
  queue_.back().text += text;
  pending_bytes_ += text.size();
}

void Terminal::show_below(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  if (closed_ || text == below_) return;
  below_ = std::move(text);
  below_rows_ = lines.size();
  const bool is_free = queue_.empty();
  erase_below();
  if (is_free) draw_below();
}

void Terminal::erase_below() {
  if (drawn_rows_ > 0) append(err_fd_, erased_rows(drawn_rows_));
  drawn_rows_ = 0;
}

void Terminal::draw_below() {
  if (drawn_rows_ > 0 || below_rows_ == 0 || !ends_at_line_end_) return;
  append(err_fd_, below_);
  drawn_rows_ = below_rows_;
}

void Terminal::pump() {
  write_waiting();
  if (!queue_.empty()) return;
  draw_below();
  write_waiting();
}

void Terminal::write_waiting() {
  stalled_ = false;
  while (!queue_.empty()) {
    const Item& item = queue_.front();
    pollfd ready{item.fd, POLLOUT, 0};
    if (::poll(&ready, 1, 0) != 1) return;
    // A pipe that polls writable has room for PIPE_BUF bytes, so that much does not block.
    const std::size_t chunk = std::min<std::size_t>(item.text.size() - front_written_, PIPE_BUF);
    const ssize_t written = ::write(item.fd, item.text.data() + front_written_, chunk);
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) {
      stalled_ = errno == EAGAIN;
      return;
    }
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
  if (queue_.empty()) {
    erase_below();
    write_waiting();
  }
  closed_ = true;
  below_rows_ = 0;
  queue_.clear();
  front_written_ = 0;
  pending_bytes_ = 0;
}

void Terminal::drain(std::chrono::milliseconds patience) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  for (pump(); waiting_fd() >= 0 && std::chrono::steady_clock::now() < give_up; pump()) {
    pollfd ready{stalled() ? -1 : waiting_fd(), POLLOUT, 0};
    ::poll(&ready, 1, static_cast<int>(kStalledTime.count()));
  }
}

}  // namespace accel::launch
