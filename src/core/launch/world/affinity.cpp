#include "core/launch/world/affinity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <tuple>

#include "base/host/numa.hpp"
#include "base/text.hpp"

namespace accel::launch {
namespace {

namespace fs = std::filesystem;

/// The cores, each with its CPUs among `allowed`, in the order of nodes.
std::vector<std::vector<int>> cores_of(const std::vector<int>& allowed, const fs::path& root) {
  const std::map<int, int> nodes = nodes_of_cpus(root);
  std::map<std::tuple<int, int>, std::vector<int>> cores;  // The keys are the node and the first CPU.
  for (const int cpu : allowed) {
    const std::vector<int> siblings =
        listed_cpus(root / fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    const auto node = nodes.find(cpu);
    cores[{node == nodes.end() ? 0 : node->second, siblings.empty() ? cpu : siblings.front()}].push_back(cpu);
  }
  std::vector<std::vector<int>> sorted;
  sorted.reserve(cores.size());
  for (auto& [place, cpus] : cores) sorted.push_back(std::move(cpus));
  return sorted;
}

/// The numbers of the visible GPUs among all, in the order of the PCI bus; those of names that are not
/// numbers are not known.
std::vector<int> visible_numbers(const Environment& environment, std::size_t all) {
  std::vector<int> numbers;
  if (const auto named = environment("CUDA_VISIBLE_DEVICES")) {
    for (const std::string& name : split(*named, ',')) numbers.push_back(parse_int(name).value_or(-1));
  } else {
    for (std::size_t i = 0; i < all; ++i) numbers.push_back(static_cast<int>(i));
  }
  return numbers;
}

/// The node of each visible GPU; -1 if the kernel does not say.
std::vector<int> nodes_of_gpus(const Environment& environment, const fs::path& root) {
  std::vector<std::string> buses;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "proc/driver/nvidia/gpus", error))
    buses.push_back(entry.path().filename().string());
  std::sort(buses.begin(), buses.end());
  std::vector<int> nodes;
  for (const int gpu : visible_numbers(environment, buses.size())) {
    int node = -1;
    if (gpu >= 0 && static_cast<std::size_t>(gpu) < buses.size()) {
      std::ifstream file(root / "sys/bus/pci/devices" / buses[static_cast<std::size_t>(gpu)] / "numa_node");
      file >> node;
      if (!file) node = -1;
    }
    nodes.push_back(node);
  }
  return nodes;
}

}  // namespace

std::vector<std::vector<int>> cpus_of_ranks(const config::LaunchConfig& launch,
                                            const std::vector<int>& allowed, const Environment& environment,
                                            const fs::path& root) {
  const auto ranks = static_cast<std::size_t>(launch.local_processes);
  std::vector<std::vector<int>> result(ranks);
  if (!launch.use_cpu && !launch.gpu_ids.empty()) {
    const std::map<int, int> node_of = nodes_of_cpus(root);
    const std::vector<int> nodes = nodes_of_gpus(environment, root);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto gpu = static_cast<std::size_t>(launch.gpu_ids[rank % launch.gpu_ids.size()]);
      const int node = gpu < nodes.size() ? nodes[gpu] : -1;
      if (node < 0) continue;
      std::copy_if(allowed.begin(), allowed.end(), std::back_inserter(result[rank]), [&](int cpu) {
        const auto found = node_of.find(cpu);
        return found != node_of.end() && found->second == node;
      });
    }
    return result;
  }
  const std::vector<std::vector<int>> cores = cores_of(allowed, root);
  if (cores.size() < ranks) return result;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = rank * cores.size() / ranks; i < (rank + 1) * cores.size() / ranks; ++i)
      result[rank].insert(result[rank].end(), cores[i].begin(), cores[i].end());
  }
  return result;
}

}  // namespace accel::launch
