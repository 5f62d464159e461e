#pragma once

#include <filesystem>
#include <vector>

#include "base/environment.hpp"
#include "core/config/config.hpp"

namespace accel::launch {

/// The CPUs for each of this machine's ranks (`enable_cpu_affinity`); empty for a rank that may use all.
///
/// CPU ranks get equal shares of the cores, all hyperthreads of a core together, in the order of NUMA nodes,
/// so that a rank has cores of one node wherever that is possible. With more ranks than cores none is bound.
/// A rank on a GPU gets all CPUs of the GPU's node, as in Accelerate. `allowed` are the CPUs of this process;
/// the files of the kernel are read below `root`.
std::vector<std::vector<int>> cpus_of_ranks(const config::LaunchConfig& launch,
                                            const std::vector<int>& allowed, const Environment& environment,
                                            const std::filesystem::path& root = "/");

}  // namespace accel::launch
