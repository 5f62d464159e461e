#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel::cli {

/// A command line, split as far as this is possible without knowing the flags of the commands.
struct Arguments {
  std::vector<std::string> own;        ///< The arguments of accel. Names of flags have "-" instead of "_".
  std::vector<std::string> program;    ///< The arguments after the "--" of `launch` and `check`.
  std::optional<std::string> command;  ///< It is not set if no command was given.
};

/// The word of a command line with "-" instead of "_" in the name of a flag.
[[nodiscard]] std::string with_hyphens(std::string argument);

/// Whether "--" begins a program with arguments of its own behind this command.
[[nodiscard]] bool takes_program(std::string_view command);

/// Splits a command line. `--num_processes=2`, which is Accelerate's spelling, becomes `--num-processes=2`.
/// After `launch` and `check`, the first "--" begins the program, whose arguments are not changed.
Arguments take_apart(const std::vector<std::string>& arguments);

}  // namespace accel::cli
