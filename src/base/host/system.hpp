#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace accel {

/// The kernel as uname(2) names it: "Linux 6.1.0-18-amd64 x86_64".
[[nodiscard]] std::string kernel_name();

/// The contents of a file of /proc; nothing if it may not be read.
[[nodiscard]] std::optional<std::string> kernel_text(const std::filesystem::path& file);

/// The distribution as os-release(5) below `root` names it: "Debian GNU/Linux 12 (bookworm)"; empty if there
/// is no such file.
[[nodiscard]] std::string distribution_name(const std::filesystem::path& root = "/");

/// What /proc/cpuinfo says of the first CPU.
struct Processor {
  std::string model;                  ///< Empty if the kernel does not say, as on ARM.
  std::vector<std::string> features;  ///< Those that libtorch's and oneDNN's kernels make use of, in order.
};
[[nodiscard]] Processor processor(const std::filesystem::path& root = "/");

}  // namespace accel
