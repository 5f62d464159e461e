#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/line/outline.hpp"

namespace accel::cli {

/// A command line, split into what accel reads itself and the program of a launch.
struct Arguments {
  std::vector<std::string> own;        ///< The arguments of accel. Names of flags have "-" instead of "_".
  std::vector<std::string> program;    ///< The program of `launch` and `check`, and its arguments.
  std::optional<std::string> command;  ///< It is not set if no command was given.
};

/// The word of a command line with "-" instead of "_" in the name of a flag.
[[nodiscard]] std::string with_hyphens(std::string argument);

/// Whether a program with arguments of its own may stand behind this command.
[[nodiscard]] bool takes_program(std::string_view command);

/// `accel help` and `accel help COMMAND` as the flag --help asks for them. Other arguments stay.
[[nodiscard]] std::vector<std::string> with_help_flag(std::vector<std::string> arguments);

/// Splits a command line. `--num_processes=2`, which is Accelerate's spelling, becomes `--num-processes=2`.
///
/// After `launch` and `check` a program begins, whose arguments are not changed, with what comes first of:
/// - the word behind "--";
/// - the word behind "-m" or "--module", which is the name of a Python module;
/// - the first argument that is a file with the suffix .py, or an executable file without that of a
///   configuration (.yaml, .yml, .json);
/// - the second argument, unless it has the suffix of a configuration, or the first one behind --config-file.
///
/// An executable file of the current directory gets "./" before its name, unless it stands behind "--".
///
/// A file with the suffix .py that is not executable is run by python3, unless "--no-python" stands before
/// it. `outline` says which flags take a value.
[[nodiscard]] Arguments take_apart(const std::vector<std::string>& arguments, const Outline& outline);

/// Throws Error (kUsage) if the program is a Python script that does not exist. Otherwise each rank would say
/// so.
void require_script(const std::vector<std::string>& program);

}  // namespace accel::cli
