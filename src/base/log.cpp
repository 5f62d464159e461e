#include "base/log.hpp"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/terminal.hpp"
#include "base/visible.hpp"

namespace accel::log {
namespace {

/// Each line begins with the prefix, if there is one.
std::string pattern_of(const std::string& prefix) { return prefix.empty() ? "%^%v%$" : "%n: %^%v%$"; }

/// Hands each line to a function, coloured as on stderr.
class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  FunctionSink(Redirect::Write write, bool colors) : write_(std::move(write)), colors_(colors) {}

 private:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    spdlog::memory_buf_t text;
    formatter_->format(msg, text);
    std::string line(text.data(), text.size());
    if (colors_ && msg.level >= spdlog::level::warn) {
      line.insert(msg.color_range_end, "\033[m");
      line.insert(msg.color_range_start,
                  msg.level == spdlog::level::warn ? "\033[33m\033[1m" : "\033[31m\033[1m");
    }
    write_(line);
  }
  void flush_() override {}

  Redirect::Write write_;
  bool colors_;
};

spdlog::color_mode color_mode_of(Color color) {
  switch (color) {
    case Color::kAlways:
      return spdlog::color_mode::always;
    case Color::kNever:
      return spdlog::color_mode::never;
    case Color::kAuto:
      break;
  }
  return allows_colors() ? spdlog::color_mode::automatic : spdlog::color_mode::never;
}

std::shared_ptr<spdlog::logger> make_logger(std::string_view prefix, Level level, Color color) {
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(color_mode_of(color));
  auto logger = std::make_shared<spdlog::logger>(std::string(prefix), sink);
  logger->set_pattern(pattern_of(logger->name()));
  sink->set_color(spdlog::level::info, "");
  sink->set_color(spdlog::level::debug, "");
  logger->flush_on(spdlog::level::trace);
  logger->set_level(level == Level::kQuiet     ? spdlog::level::warn
                    : level == Level::kVerbose ? spdlog::level::debug
                                               : spdlog::level::info);
  return logger;
}

std::shared_ptr<spdlog::logger>& logger() {
  static std::shared_ptr<spdlog::logger> instance = make_logger("accel", Level::kNormal, Color::kAuto);
  return instance;
}

}  // namespace

void init(std::string_view prefix, Level level, Color color) { logger() = make_logger(prefix, level, color); }

Redirect::Redirect(Write write) : previous_(logger()->sinks()) {
  const auto terminal = std::dynamic_pointer_cast<spdlog::sinks::stderr_color_sink_mt>(previous_.front());
  auto sink = std::make_shared<FunctionSink>(std::move(write), terminal && terminal->should_color());
  sink->set_pattern(pattern_of(logger()->name()));
  logger()->sinks() = {std::move(sink)};
}

Redirect::~Redirect() { logger()->sinks() = std::move(previous_); }

namespace {

void write(spdlog::level::level_enum level, const std::string& text) {
  const std::size_t prefix = logger()->name().empty() ? 0 : logger()->name().size() + 2;
  logger()->log(level, wrapped_on(STDERR_FILENO, text, prefix, prefix));
}

}  // namespace

// Only warnings and errors have a label.
void debug(std::string_view message) { write(spdlog::level::debug, visible(message)); }
void info(std::string_view message) { write(spdlog::level::info, visible(message)); }
void warn(std::string_view message) {
  write(spdlog::level::warn, fmt::format("warning: {}", visible(message)));
}
void error(std::string_view message) {
  write(spdlog::level::err, fmt::format("error: {}", visible_lines(message)));
}

}  // namespace accel::log
