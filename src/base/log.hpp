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
/// line
/// ("accel", or "rank 1" in a worker). Call once at the start of main; before it, lines go out plainly.
/// `NO_COLOR` in the environment counts as kNever under kAuto.
void init(std::string_view prefix, Level level, Color color);

/// While it lives, lines go to `write`, each with its end, instead of to stderr: for a process that must not
/// wait for whoever reads stderr. Not nested, and no init() meanwhile.
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

/// One line each, of which base/visible.hpp makes what a terminal may have. An error may have several lines:
/// what of it comes from files has been made visible by whoever joins the lines.
void debug(std::string_view message);  ///< Only with --verbose.
void info(std::string_view message);   ///< Not with --quiet.
void warn(std::string_view message);
void error(std::string_view message);

}  // namespace accel::log
