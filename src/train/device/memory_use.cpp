#include "train/device/memory_use.hpp"

#include <c10/core/CachingDeviceAllocator.h>

#include <fstream>
#include <sstream>
#include <string>

namespace accel::train {

std::uint64_t max_rss_bytes() {
  // getrusage's ru_maxrss is not used: it survives exec and would count the launcher's pages.
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (!line.starts_with("VmHWM:")) continue;
    std::istringstream fields(line.substr(6));
    std::uint64_t kibibytes = 0;
    fields >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

std::optional<std::uint64_t> max_memory_allocated_bytes(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  using c10::CachingAllocator::StatType;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto& all = stats.allocated_bytes.at(static_cast<std::size_t>(StatType::AGGREGATE));
  return static_cast<std::uint64_t>(all.peak);
}

}  // namespace accel::train
