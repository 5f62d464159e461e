#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace accel {

/// The numbers of the CPUs that this process may run on (sched_getaffinity), ascending; empty if the system
/// does not say.
[[nodiscard]] std::vector<int> allowed_cpus();

/// How many CPUs' worth of time the control groups of this process allow, for example 1.5; absent without a
/// limit. It is the least quota of the group and of those above it, in version 2 (`cpu.max`) and version 1
/// (`cpu.cfs_quota_us`), as found below `root`.
[[nodiscard]] std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

/// How many threads can compute at the same time: one per CPU in allowed_cpus(), but no more than cpu_quota()
/// has whole CPUs, and at least 1. The kernel would stop threads beyond the quota in the middle of their
/// work.
[[nodiscard]] unsigned usable_cpus(const std::filesystem::path& root = "/");

}  // namespace accel
