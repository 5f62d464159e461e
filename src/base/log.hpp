#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace spdlog::sinks {
class sink;
}

namespace accel::log {

enum class Level { kQuiet, kNormal, kVerbose };
enum class Color { kAuto, kAlways, kNever };

/// Sets up the one logger, which writes to stderr; stdout is for results alone. `prefix` stands before every
/// line ("accel", or "rank 1" in a worker). Call once at the start of main; before that the prefix is "accel"
/// and the level kNormal. kAuto is kNever where allows_colors() is false.
void init(std::string_view prefix, Level level, Color color);

/// Sends the log's lines, with their newlines, to `write` instead of to stderr, as long as the object lives.
/// A process that must not wait for the reader of its stderr uses it. Two of them must not be nested, and
/// init() must not be called meanwhile.
class Redirect {
 public:
  using Write = std::function<void(std::string_view line)>;

  explicit Redirect(Write write);
  Redirect(const Redirect&) = delete;
  Redirect& operator=(const Redirect&) = delete;
  ~Redirect();

 private:
  std::vector<std::shared_ptr<spdlog::sinks::sink>> previous_;
};

/// Each logs one line, after visible() of base/visible.hpp, wrapped at the width of a terminal. An error may
/// have several lines; whoever joins them makes the text that comes from files visible first.
void debug(std::string_view message);  ///< The line appears only with --verbose.
void info(std::string_view message);   ///< The line does not appear with --quiet.
void warn(std::string_view message);
void error(std::string_view message);

}  // namespace accel::log
