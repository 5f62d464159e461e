#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "base/exit_code.hpp"

namespace accel::cli {

/// Runs the whole program except for process start: parses `arguments` (without the program's name), runs the
/// chosen command and turns every Error into a message on `err` and an exit code. Does not throw.
ExitCode run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace accel::cli
