#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accel {

/// The errors of GPUs ("Xid") that NVIDIA's driver writes into the kernel's log from now on. The format is
/// that of the kernel's Documentation/ABI/testing/dev-kmsg.
class GpuErrorLog {
 public:
  /// Begins behind what the log has now. A log that may not be read has no errors.
  explicit GpuErrorLog(const std::filesystem::path& log = "/dev/kmsg");
  ~GpuErrorLog();
  GpuErrorLog(const GpuErrorLog&) = delete;
  GpuErrorLog& operator=(const GpuErrorLog&) = delete;

  /// Those that have come since the last call, as the driver words them, each once, at most eight of them.
  [[nodiscard]] std::vector<std::string> news();

 private:
  int file_;
};

}  // namespace accel
