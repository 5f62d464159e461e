#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace accel {

/// The clock of the kernel's log: the time since the machine was started.
[[nodiscard]] std::chrono::microseconds kernel_log_time();

/// The errors of GPUs ("Xid") that NVIDIA's driver has written into the kernel's log since then, as it words
/// them, each once, at most eight of them. Nothing if this process may not read the log. The format is that
/// of the kernel's Documentation/ABI/testing/dev-kmsg.
[[nodiscard]] std::vector<std::string> gpu_errors_since(std::chrono::microseconds since,
                                                        const std::filesystem::path& log = "/dev/kmsg");

}  // namespace accel
