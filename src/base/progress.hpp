#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace accel {

/// Shows on stderr how far a long piece of work has come: a bar that is redrawn if stderr can_redraw(), else
/// a line every few seconds. Work that is done before the first line is due shows nothing. One thread at a
/// time may use it.
class Progress {
 public:
  enum class Mode { kOff, kAuto };

  /// `label` says what is being done ("merging").
  Progress(std::string label, std::uint64_t total_bytes, Mode mode);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Removes the bar.
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
