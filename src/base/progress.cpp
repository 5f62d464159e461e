#include "base/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/log.hpp"
#include "base/seconds.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"

namespace accel {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRedraw{100};
constexpr milliseconds kLine{5000};
constexpr std::size_t kBarWidth = 24;

std::string bar_of(std::uint64_t done, std::uint64_t total) {
  const double fraction = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
  const auto filled = std::min(kBarWidth, static_cast<std::size_t>(fraction * kBarWidth));
  return "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "] ";
}

}  // namespace

Progress::Progress(std::string label, std::uint64_t total_bytes, Mode mode)
    : label_(std::move(label)),
      total_bytes_(total_bytes),
      enabled_(mode == Mode::kAuto),
      begin_(Clock::now()) {
  terminal_ = enabled_ && can_redraw(STDERR_FILENO);
  next_ = begin_ + (terminal_ ? kRedraw : kLine);
}

Progress::~Progress() {
  if (terminal_ && shown_) std::fputs("\r\x1b[K", stderr);
}

void Progress::add(std::uint64_t bytes) {
  done_bytes_ += bytes;
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + (terminal_ ? kRedraw : kLine);
  show();
}

double Progress::seconds() const { return seconds_since(begin_); }

void Progress::show() {
  shown_ = true;
  const std::string text = progress_text(label_, done_bytes_, total_bytes_, seconds());
  if (!terminal_) {
    log::info(text);
    return;
  }
  const std::string line = "\r" + bar_of(done_bytes_, total_bytes_) + text + "\x1b[K";
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

std::string progress_text(const std::string& label, std::uint64_t done_bytes, std::uint64_t total_bytes,
                          double seconds) {
  const double done = static_cast<double>(done_bytes);
  const double total = static_cast<double>(total_bytes);
  const double rate = seconds > 0 ? done / seconds : 0;
  const double percent = total_bytes == 0 ? 100 : std::min(100.0, 100 * done / total);
  std::string text = fmt::format("{}  {:.0f}%  {} of {}", label, percent, format_bytes(done_bytes),
                                 format_bytes(total_bytes));
  if (rate > 0) {
    text += fmt::format("  {}/s", format_bytes(static_cast<std::uint64_t>(rate)));
    if (done < total) text += fmt::format("  {} left", format_duration((total - done) / rate));
  }
  return text;
}

}  // namespace accel
