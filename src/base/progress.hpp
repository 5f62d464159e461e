#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace accel {

/// How far a long piece of work has come, on stderr: a bar that is redrawn when stderr is a terminal,
/// otherwise a line every few seconds, and nothing at all if the work is done before the first would be due.
/// Not for use by several threads at once.
class Progress {
 public:
  enum class Mode { kOff, kAuto };

  /// `label` says what is being done ("merging").
  Progress(std::string label, std::uint64_t total_bytes, Mode mode);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Takes the bar away.
  ~Progress();

  void add(std::uint64_t bytes);

  [[nodiscard]] double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  void show();

  std::string label_;
  std::uint64_t total_bytes_;
  std::uint64_t done_bytes_ = 0;
  bool enabled_;
  bool terminal_ = false;
  bool shown_ = false;
  Clock::time_point begin_;
  Clock::time_point next_;
};

/// The text of a bar or a line: "merging  45%  1.2 GB of 2.7 GB  610 MB/s  2.5 s left".
[[nodiscard]] std::string progress_text(const std::string& label, std::uint64_t done_bytes,
                                        std::uint64_t total_bytes, double seconds);

}  // namespace accel
