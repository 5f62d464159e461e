#include "base/host/cpus.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <string>

#include "base/text.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;

// Linux has at most 8192 today.
constexpr int kMostCpus = 1 << 20;

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

void take_least(std::optional<double>& least, double quota) {
  if (quota > 0) least = std::min(least.value_or(quota), quota);
}

/// Version 2, `cpu.max`: "QUOTA PERIOD", both in microseconds, or "max PERIOD".
void read_version_2(const fs::path& group, std::optional<double>& least) {
  std::ifstream file(group / "cpu.max");
  double quota = 0;
  double period = 0;
  if (file >> quota >> period && period > 0) take_least(least, quota / period);
}

/// Version 1, where a quota of -1 means no limit.
void read_version_1(const fs::path& group, std::optional<double>& least) {
  std::ifstream quota_file(group / "cpu.cfs_quota_us");
  std::ifstream period_file(group / "cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (quota_file >> quota && period_file >> period && period > 0) take_least(least, quota / period);
}

/// Reads the group and those above it, up to the mount. In a container without a namespace of its own the
/// path is that of the host, and only the mount itself exists.
template <class Read>
void read_upwards(const fs::path& mount, const std::string& group, const Read& read) {
  fs::path relative = fs::path(group).relative_path();
  while (!relative.empty()) {
    read(mount / relative);
    relative = relative.has_parent_path() ? relative.parent_path() : fs::path();
  }
  read(mount);
}

}  // namespace

std::vector<int> allowed_cpus() {
  // The call fails with EINVAL while the set is smaller than the kernel's.
  for (int count = CPU_SETSIZE; count <= kMostCpus; count *= 2) {
    const std::unique_ptr<cpu_set_t, FreeCpuSet> set(CPU_ALLOC(static_cast<std::size_t>(count)));
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(count));
    if (set == nullptr) return {};
    CPU_ZERO_S(bytes, set.get());
    if (::sched_getaffinity(0, bytes, set.get()) != 0) {
      if (errno == EINVAL) continue;
      return {};
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < count; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set.get())) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> least;
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream list(root / "proc/self/cgroup");
  // "ID:CONTROLLERS:PATH"; version 2 has the ID 0 and no controllers.
  for (std::string line; std::getline(list, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      read_upwards(mount, group, [&](const fs::path& path) { read_version_2(path, least); });
      continue;
    }
    const std::vector<std::string> names = split(controllers, ',');
    if (std::find(names.begin(), names.end(), "cpu") == names.end()) continue;
    for (const std::string& name : {controllers, std::string("cpu")}) {
      read_upwards(mount / name, group, [&](const fs::path& path) { read_version_1(path, least); });
    }
  }
  return least;
}

unsigned usable_cpus(const fs::path& root) {
  const std::size_t allowed = std::max<std::size_t>(allowed_cpus().size(), 1);
  const double quota = std::max(cpu_quota(root).value_or(static_cast<double>(allowed)), 1.0);
  return static_cast<unsigned>(std::min(static_cast<double>(allowed), quota));
}

}  // namespace accel
