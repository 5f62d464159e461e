#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

/// The bytes in "5GB", "1.5 gb", "64MiB" or "100": decimal units unless there is an i; a fraction of a byte
/// is dropped. Nothing if it is no size, or over 2^63.
std::optional<std::uint64_t> parse_size(std::string_view text);

}  // namespace accel::cli
