#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accel::cli {

/// A command line, taken apart as far as can be done without knowing the commands' flags.
struct Arguments {
  std::vector<std::string> own;      ///< For accel, names of flags with "-" for "_".
  std::vector<std::string> program;  ///< What stands behind "--" after `launch`.
  std::optional<std::string> command;
};

/// `--num_processes=2` becomes `--num-processes=2`: Accelerate's spelling and ours are one. Behind `launch`,
/// the first
/// "--" begins the program, of which nothing is changed.
Arguments take_apart(const std::vector<std::string>& arguments);

}  // namespace accel::cli
