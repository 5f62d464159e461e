#include "base/host/numa.hpp"

#include <cstddef>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/text.hpp"

namespace accel {

namespace fs = std::filesystem;

std::vector<int> listed_cpus(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  std::vector<int> cpus;
  for (const std::string& part : split(line, ',')) {
    const std::size_t dash = part.find('-');
    const auto first = parse_int(std::string_view(part).substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_int(std::string_view(part).substr(dash + 1));
    if (!first || !last) continue;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::string list_of_cpus(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    const std::size_t first = i;
    while (i + 1 < cpus.size() && cpus[i + 1] == cpus[i] + 1) ++i;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[first]);
    if (i > first) text += '-' + std::to_string(cpus[i]);
  }
  return text;
}

std::map<int, int> nodes_of_cpus(const fs::path& root) {
  std::map<int, int> nodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    const auto node = name.starts_with("node") ? parse_int(name.substr(4)) : std::nullopt;
    if (!node) continue;
    for (const int cpu : listed_cpus(entry.path() / "cpulist")) nodes[cpu] = *node;
  }
  return nodes;
}

}  // namespace accel
