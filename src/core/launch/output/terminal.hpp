#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <future>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/fd.hpp"

namespace accel::launch {

/// Writes to the launcher's own stdout and stderr. It writes strictly in order, so that a line of one does
/// not break a line of the other, and never blocks, so that signals are served while a reader is slow. A
/// regular file, whose file system may stall for minutes, gets its text from a pipe, by a thread.
class Terminal {
 public:
  /// The time after which to write again to a terminal that accepted nothing.
  static constexpr std::chrono::milliseconds kStalledTime{50};
  /// How long a file may take for what was written before close().
  static constexpr std::chrono::milliseconds kLastTextTime{5000};

  Terminal(int out_fd, int err_fd);
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  /// Waits until files have what was written, and after close() not longer than kLastTextTime.
  ~Terminal();

  void out(std::string_view text) { push(out_fd_, text); }
  void err(std::string_view text) { push(err_fd_, text); }

  /// Shows `lines` on stderr below all other text, in place of those that it showed before; no lines remove
  /// them. stderr must be a terminal, and no line wider than redrawn_width() of base/terminal.hpp. They are
  /// drawn again below what out() and err() write. A reader that is slow does not get them.
  void show_below(const std::vector<std::string>& lines);

  /// The descriptor to poll for writing; -1 when nothing waits.
  [[nodiscard]] int waiting_fd() const { return queue_.empty() ? -1 : queue_.front().fd; }
  /// Whether the descriptor polls writable and accepted nothing, as a terminal after Ctrl-S does. Then do not
  /// poll it, and call pump() again after a while.
  [[nodiscard]] bool stalled() const { return stalled_; }
  /// Whether so much waits that no more should be read from the workers.
  [[nodiscard]] bool full() const { return pending_bytes_ > kHighWater; }
  /// Writes what can be written now. If the reader has gone away, its text is dropped; that is not an error.
  void pump();
  /// Drops what waits, and all that comes later. Lines of show_below() are removed, unless something waits.
  void close();
  /// Writes what waits, for at most that time.
  void drain(std::chrono::milliseconds patience);

 private:
  struct Item {
    int fd;
    std::string text;
  };
  /// A pipe from which a thread writes a file.
  struct FileCopy {
    Fd pipe;
    std::future<void> end;
  };
  static constexpr std::size_t kHighWater = 8 << 20;

  [[nodiscard]] int through_pipe(int fd);
  void push(int fd, std::string_view text);
  void append(int fd, std::string_view text);
  void write_waiting();
  void erase_below();
  void draw_below();

  Fd own_out_;  ///< A terminal is opened again, so that it can be written without blocking.
  Fd own_err_;
  std::vector<FileCopy> files_;
  int out_fd_;
  int err_fd_;
  std::deque<Item> queue_;
  std::size_t front_written_ = 0;
  std::size_t pending_bytes_ = 0;
  std::string below_;  ///< The lines of show_below().
  std::size_t below_rows_ = 0;
  std::size_t drawn_rows_ = 0;    ///< So many of them stand on the terminal once all is written.
  bool ends_at_line_end_ = true;  ///< What the terminal got last; below a partial line nothing is drawn.
  bool closed_ = false;
  bool stalled_ = false;
};

}  // namespace accel::launch
