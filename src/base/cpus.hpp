#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace accel {

/// The numbers of the CPUs that this process may run on (sched_getaffinity), ascending; empty if the system
/// does not say.
[[nodiscard]] std::vector<int> allowed_cpus();

/// How many CPUs' worth of time the control groups of this process allow, for example 1.5; absent without a
/// limit. It is the smallest of the group's own quota and those of the groups above it, in version 2
/// (`cpu.max`) and version 1 (`cpu.cfs_quota_us`), as found below `root`.
[[nodiscard]] std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

/// How many threads can compute at the same time: one a CPU in allowed_cpus(), but no more than cpu_quota()
/// has whole CPUs, since threads beyond it are stopped in the middle of their work; at least 1.
[[nodiscard]] unsigned usable_cpus(const std::filesystem::path& root = "/");

}  // namespace accel
