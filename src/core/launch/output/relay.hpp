#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/launch/output/log_queue.hpp"
#include "core/launch/output/pipe.hpp"

namespace accel::launch {

/// Cuts a stream into whole lines. A carriage return ends a line too, so that progress bars move.
class LineCutter {
 public:
  using Sink = std::function<void(std::string_view lines)>;

  /// Passes the lines that `chunk` completes to `sink`, with their line ends, in as few calls as possible.
  void feed(std::string_view chunk, const Sink& sink);
  /// Passes on the last line, which has no end, with a newline added.
  void finish(const Sink& sink);
  /// The begin of a line that is not complete yet.
  [[nodiscard]] std::string_view partial() const { return partial_; }

 private:
  static constexpr std::size_t kLongestLine = 1 << 20;  ///< A longer line is passed on in parts.

  std::string partial_;
};

/// Puts `prefix` in front of every line.
std::string with_prefix(std::string_view lines, std::string_view prefix);

/// Copies one stream of one worker to the log file (every byte, as it comes) and to the screen (whole lines),
/// and keeps the last lines for the failure report.
class Relay {
 public:
  /// `log` may have no file. `show` gets whole lines; it may be empty.
  Relay(Fd source, QueuedLog log, LineCutter::Sink show);

  [[nodiscard]] int fd() const { return source_.get(); }
  [[nodiscard]] bool open() const { return static_cast<bool>(source_); }
  /// Reads what is available, up to a fair share. At the end of the stream it finishes the last line and
  /// closes.
  void pump();
  /// Reads what is available and closes, although a process holds the other end.
  void close();

  /// From now on the screen also gets a line that has no end yet, once its worker is silent for a moment: it
  /// may be the prompt of a worker that waits for input.
  void show_prompts() { shows_prompts_ = true; }
  /// When serve_prompt() is to be called; nothing if it need not be called.
  [[nodiscard]] std::optional<std::chrono::steady_clock::time_point> prompt_due() const;
  void serve_prompt();

  /// When something was read last; when it was made if nothing was.
  [[nodiscard]] std::chrono::steady_clock::time_point last_output() const { return last_output_; }

  /// The last lines, without their ends.
  [[nodiscard]] const std::deque<std::string>& tail() const { return tail_; }

 private:
  static constexpr std::size_t kTailLines = 20;

  void take(std::string_view chunk);
  void finish();
  void deliver(std::string_view lines);

  Fd source_;
  QueuedLog log_;
  LineCutter cutter_;
  LineCutter::Sink show_;
  bool shows_prompts_ = false;
  std::size_t shown_bytes_ = 0;  ///< So much of the line without an end is on the screen.
  std::chrono::steady_clock::time_point last_output_ = std::chrono::steady_clock::now();
  std::deque<std::string> tail_;
};

}  // namespace accel::launch
