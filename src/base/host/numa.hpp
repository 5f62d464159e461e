#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace accel {

/// The CPUs in a file of the kernel with a list such as "0-3,8"; empty if there is no such file.
[[nodiscard]] std::vector<int> listed_cpus(const std::filesystem::path& file);

/// Ascending CPUs as the kernel writes them: "0-3,8".
[[nodiscard]] std::string list_of_cpus(const std::vector<int>& cpus);

/// The NUMA node of each CPU, as the kernel's files below `root` say; empty if they are not there.
[[nodiscard]] std::map<int, int> nodes_of_cpus(const std::filesystem::path& root = "/");

}  // namespace accel
