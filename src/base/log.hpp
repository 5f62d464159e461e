#pragma once

#include <string_view>

namespace accel::log {

enum class Level { kQuiet, kNormal, kVerbose };
enum class Color { kAuto, kAlways, kNever };

/// Sets up the one logger, which writes to stderr; stdout is for results alone. `prefix` stands before every
/// line
/// ("accel", or "rank 1" in a worker). Call once at the start of main; before it, lines go out plainly.
/// `NO_COLOR` in the environment counts as kNever under kAuto.
void init(std::string_view prefix, Level level, Color color);

void debug(std::string_view message);  ///< Only with --verbose.
void info(std::string_view message);   ///< Not with --quiet.
void warn(std::string_view message);
void error(std::string_view message);

}  // namespace accel::log
