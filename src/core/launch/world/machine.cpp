#include "core/launch/world/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/files/fault.hpp"
#include "base/host/cpus.hpp"
#include "base/text.hpp"

namespace accel::launch {
namespace {

int named_devices(const std::string& list) {
  int count = 0;
  for (const std::string& device : split(list, ',')) {
    // CUDA stops at the first entry that is not a device.
    const std::string_view name = trim(device);
    if (name.empty() || name.starts_with('-') || name == "NoDevFiles" || name == "none") break;
    ++count;
  }
  return count;
}

bool is_device_file(const std::string& name) {
  static constexpr std::string_view kPrefix = "nvidia";
  return name.starts_with(kPrefix) && is_digits(std::string_view(name).substr(kPrefix.size()));
}

}  // namespace

int visible_gpus(const Environment& environment, const std::filesystem::path& root) {
  // The simulated device of the tests takes the place of eight GPUs.
  int present = fault::device_module() == nullptr ? 0 : 8;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root / "proc/driver/nvidia/gpus", error)) {
    present += entry.is_directory() ? 1 : 0;
  }
  if (present == 0) {
    // A container may have the device files without the driver's part of /proc.
    for (const auto& entry : std::filesystem::directory_iterator(root / "dev", error)) {
      present += is_device_file(entry.path().filename().string()) ? 1 : 0;
    }
  }
  const auto named = environment("CUDA_VISIBLE_DEVICES");
  return named ? std::min(present, named_devices(*named)) : present;
}

int physical_cores(const std::filesystem::path& root) {
  std::set<std::string> cores;
  for (const int cpu : allowed_cpus()) {
    // Hyperthreads of one core list the same siblings.
    std::ifstream file(root / fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = fmt::format("cpu{}", cpu);
    cores.insert(siblings);
  }
  const int usable = static_cast<int>(usable_cpus(root));
  return std::max(1, std::min(static_cast<int>(cores.size()), usable));
}

}  // namespace accel::launch
