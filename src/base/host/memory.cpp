#include "base/host/memory.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace accel {
namespace {

namespace fs = std::filesystem;

/// The number behind `name` at the beginning of a line, or the first number of a file if `name` is empty.
std::optional<std::uint64_t> number_in(const fs::path& file, const std::string& name = {}) {
  std::ifstream in(file);
  for (std::string word; in && !name.empty() && word != name;) in >> word;
  std::uint64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

/// The names of the files of a control group, in one version of them.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* cached;  ///< The key in memory.stat, of the group with those below it.
};
constexpr GroupFiles kVersions[] = {
    {"memory.max", "memory.current", "inactive_file"},
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}};

/// The limit of a control group; nothing if it has none.
std::optional<std::uint64_t> limit_of(const fs::path& group, const GroupFiles& files) {
  // Version 1 writes "no limit" as the greatest number of whole pages.
  constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;
  const auto limit = number_in(group / files.limit);
  return limit && *limit < kNoLimit ? limit : std::nullopt;
}

/// The bytes that a control group has left; nothing if it has no limit. The page cache counts as free
/// as far as it is not in use.
std::optional<std::uint64_t> left_in(const fs::path& group, const GroupFiles& files) {
  const auto most = limit_of(group, files);
  const auto used = number_in(group / files.usage);
  if (!most || !used) return std::nullopt;
  const std::uint64_t cached = std::min(*used, number_in(group / "memory.stat", files.cached).value_or(0));
  return *most - std::min(*most, *used - cached);
}

/// A control group of this process that may limit its memory, in version 2 or in the memory controller of
/// version 1.
struct Group {
  bool is_v1 = false;
  fs::path mount;
  fs::path path;
};

std::vector<Group> groups_of_this_process(const fs::path& root) {
  std::vector<Group> groups;
  std::ifstream list(root / "proc/self/cgroup");
  for (std::string line; std::getline(list, line);) {
    // NUMBER:CONTROLLERS:/PATH; version 2 has no controllers.
    const std::size_t slash = line.find(":/");
    const bool is_v1 = line.find(":memory:") != std::string::npos;
    if (slash == std::string::npos || (!is_v1 && !line.starts_with("0::"))) continue;
    const fs::path mount = root / (is_v1 ? "sys/fs/cgroup/memory" : "sys/fs/cgroup");
    groups.push_back({is_v1, mount, mount / line.substr(slash + 2)});
  }
  return groups;
}

/// Calls `look` for these groups and those above them.
template <class Look>
void for_each_group(const fs::path& root, const Look& look) {
  for (const Group& own : groups_of_this_process(root)) {
    for (fs::path group = own.path;; group = group.parent_path()) {
      look(group);
      if (group == own.mount || group == group.parent_path()) break;
    }
  }
}

}  // namespace

std::uint64_t available_memory_bytes(const fs::path& root) {
  std::uint64_t available = number_in(root / "proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  for_each_group(root, [&](const fs::path& group) {
    for (const GroupFiles& files : kVersions) {
      if (const auto left = left_in(group, files)) available = std::min(available, *left);
    }
  });
  return available;
}

std::uint64_t total_memory_bytes(const fs::path& root) {
  return number_in(root / "proc/meminfo", "MemTotal:").value_or(0) * 1024;
}

std::uint64_t max_rss_bytes() { return number_in("/proc/self/status", "VmHWM:").value_or(0) * 1024; }

std::optional<std::uint64_t> memory_limit_bytes(const fs::path& root) {
  std::optional<std::uint64_t> least;
  for_each_group(root, [&](const fs::path& group) {
    for (const GroupFiles& files : kVersions) {
      if (const auto limit = limit_of(group, files)) least = std::min(least.value_or(*limit), *limit);
    }
  });
  return least;
}

OomKills oom_kills_since(const OomKills& before) {
  OomKills kills = oom_kills();
  const auto subtract = [](std::optional<std::uint64_t>& now, const std::optional<std::uint64_t>& then) {
    now = now && then ? std::optional(*now - std::min(*now, *then)) : std::nullopt;
  };
  subtract(kills.group, before.group);
  subtract(kills.machine, before.machine);
  return kills;
}

OomKills oom_kills(const fs::path& root) {
  OomKills kills;
  kills.machine = number_in(root / "proc/vmstat", "oom_kill");
  for (const Group& group : groups_of_this_process(root)) {
    const char* file = group.is_v1 ? "memory.oom_control" : "memory.events";
    if (const auto count = number_in(group.path / file, "oom_kill")) kills.group = count;
  }
  return kills;
}

}  // namespace accel
