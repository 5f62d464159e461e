#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/launch/agent/pipe.hpp"

namespace accel::core {

/// Cuts a stream into whole lines. A carriage return ends a line too, so that progress bars are shown as they
/// move.
class LineCutter {
 public:
  using Sink = std::function<void(std::string_view lines)>;

  /// Hands the lines completed by `chunk` to `sink`, in as few calls as possible, each with its line end.
  void feed(std::string_view chunk, const Sink& sink);
  /// Hands on the last line that has no end, with a newline added.
  void finish(const Sink& sink);

 private:
  static constexpr std::size_t kLongestLine = 1 << 20;  ///< A longer one is handed on in parts.

  std::string partial_;
};

/// Puts `prefix` in front of every line.
std::string with_prefix(std::string_view lines, std::string_view prefix);

/// One stream of one worker on its way to the log file (every byte, as it comes), to the screen (whole lines)
/// and into a short memory for the failure report.
class Relay {
 public:
  /// `log` may be empty: no file. `show` gets whole lines; it may be empty.
  Relay(Fd source, const std::filesystem::path& log, LineCutter::Sink show);

  [[nodiscard]] int fd() const { return source_.get(); }
  [[nodiscard]] bool open() const { return static_cast<bool>(source_); }
  /// Reads what is there, up to a fair share; at the end of the stream finishes the last line and closes.
  void pump();
  /// Gives up on whoever still holds the other end: takes what is there, and closes.
  void close();

  /// The last lines, without their ends.
  [[nodiscard]] const std::deque<std::string>& tail() const { return tail_; }

 private:
  static constexpr std::size_t kTailLines = 20;

  void take(std::string_view chunk);
  void finish();
  void deliver(std::string_view lines);
  void write_log(std::string_view chunk);

  Fd source_;
  Fd log_;
  std::string log_name_;
  LineCutter cutter_;
  LineCutter::Sink show_;
  std::deque<std::string> tail_;
};

}  // namespace accel::core
