#include "core/launch/output/relay.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace accel::launch {
namespace {

constexpr std::string_view kLineEnds = "\n\r";

}  // namespace

void LineCutter::feed(std::string_view chunk, const Sink& sink) {
  const std::size_t last = chunk.find_last_of(kLineEnds);
  if (last == std::string_view::npos) {
    partial_ += chunk;
    if (partial_.size() < kLongestLine) return;
    sink(partial_);
    partial_.clear();
    return;
  }
  if (partial_.empty()) {
    sink(chunk.substr(0, last + 1));
  } else {
    partial_ += chunk.substr(0, last + 1);
    sink(partial_);
  }
  partial_ = chunk.substr(last + 1);
}

void LineCutter::finish(const Sink& sink) {
  if (partial_.empty()) return;
  partial_ += '\n';
  sink(partial_);
  partial_.clear();
}

std::string with_prefix(std::string_view lines, std::string_view prefix) {
  std::string result;
  result.reserve(lines.size() + prefix.size());
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find_first_of(kLineEnds), lines.size() - 1) + 1;
    // A carriage return before a newline is part of the same line end.
    const std::size_t full =
        end < lines.size() && lines[end - 1] == '\r' && lines[end] == '\n' ? end + 1 : end;
    result += prefix;
    result += lines.substr(0, full);
    lines.remove_prefix(full);
  }
  return result;
}

Relay::Relay(Fd source, QueuedLog log, LineCutter::Sink show)
    : source_(std::move(source)), log_(std::move(log)), show_(std::move(show)) {}

void Relay::pump() {
  constexpr int kFairReads = 8;
  std::array<char, 65536> buffer;
  for (int i = 0; i < kFairReads; ++i) {
    const ssize_t got = ::read(source_.get(), buffer.data(), buffer.size());
    if (got > 0) {
      take({buffer.data(), static_cast<std::size_t>(got)});
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      finish();
      return;
    } else {
      return;
    }
  }
}

void Relay::close() {
  // A process at the other end may write for ever. These rounds read what the pipe can hold.
  constexpr int kRounds = 4;
  for (int i = 0; i < kRounds && open(); ++i) pump();
  if (open()) finish();
}

void Relay::take(std::string_view chunk) {
  last_output_ = std::chrono::steady_clock::now();
  log_.write(chunk);
  cutter_.feed(chunk, [this](std::string_view lines) { deliver(lines); });
}

void Relay::finish() {
  cutter_.finish([this](std::string_view lines) { deliver(lines); });
  source_.reset();
  log_.close();
}

std::optional<std::chrono::steady_clock::time_point> Relay::prompt_due() const {
  constexpr auto kSilence = std::chrono::milliseconds(50);
  if (!shows_prompts_ || !show_ || cutter_.partial().size() <= shown_bytes_) return std::nullopt;
  return last_output_ + kSilence;
}

void Relay::serve_prompt() {
  const auto due = prompt_due();
  if (!due || std::chrono::steady_clock::now() < *due) return;
  show_(cutter_.partial().substr(shown_bytes_));
  shown_bytes_ = cutter_.partial().size();
}

void Relay::deliver(std::string_view lines) {
  if (show_) show_(lines.substr(std::min(shown_bytes_, lines.size())));
  shown_bytes_ = 0;
  // Only the last lines of a large block are kept.
  std::size_t begin = lines.size();
  for (std::size_t i = 0; i <= kTailLines && begin != std::string_view::npos && begin > 0; ++i) {
    begin = lines.find_last_of(kLineEnds, begin - 1);
  }
  if (begin != std::string_view::npos && begin < lines.size()) lines.remove_prefix(begin + 1);
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find_first_of(kLineEnds), lines.size());
    if (end > 0) tail_.emplace_back(lines.substr(0, end));
    if (tail_.size() > kTailLines) tail_.pop_front();
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
}

}  // namespace accel::launch
