#include "core/config/common_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace accel::config {
namespace {

/// Whether machines may differ in the setting: what is of one machine, and where in a file a value is set.
bool may_differ(std::string_view name) {
  constexpr std::array<std::string_view, 11> kOwn = {"launch.machine_rank",
                                                     "launch.local_processes",
                                                     "launch.main_process_ip",
                                                     "launch.gpu_ids",
                                                     "launch.log_dir",
                                                     "launch.worker",
                                                     "launch.rendezvous_timeout_s",
                                                     "fsdp.wrap_origin",
                                                     "fsdp.ignored_origin",
                                                     "launch.log_max_bytes",
                                                     "launch.log_files"};
  return std::any_of(kOwn.begin(), kOwn.end(), [&](std::string_view own) {
    return name == own || (name.starts_with(own) && name[own.size()] == '.');
  });
}

/// The settings that differ, each with the value of both sides.
std::map<std::string, std::pair<std::string, std::string>> compared(
    const std::map<std::string, std::string>& own, const std::map<std::string, std::string>& others) {
  std::map<std::string, std::pair<std::string, std::string>> found;
  for (const auto& [name, value] : own) found[name] = {value, "not set"};
  for (const auto& [name, value] : others)
    found.try_emplace(name, "not set", "").first->second.second = value;
  std::erase_if(found, [](const auto& entry) { return entry.second.first == entry.second.second; });
  return found;
}

}  // namespace

std::map<std::string, std::string> common_settings(const Config& config) {
  std::map<std::string, std::string> settings;
  const nlohmann::json flat = config_to_json(config).flatten();
  for (const auto& [pointer, value] : flat.items()) {
    std::string name = pointer.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    if (!may_differ(name)) settings[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return settings;
}

std::string differences(const std::map<std::string, std::string>& own,
                        const std::map<std::string, std::string>& others, const std::string& other) {
  constexpr std::size_t kShown = 5;
  const auto found = compared(own, others);
  std::string text;
  std::size_t count = 0;
  for (const auto& [name, values] : found) {
    if (++count > kShown) return fmt::format("{}; and {} more", text, found.size() - kShown);
    text +=
        fmt::format("{}{} is {}, {} {}", count == 1 ? "" : "; ", name, values.first, other, values.second);
  }
  return text;
}

std::vector<std::string> different_names(const std::map<std::string, std::string>& own,
                                         const std::map<std::string, std::string>& others) {
  std::vector<std::string> names;
  for (const auto& [name, values] : compared(own, others)) names.push_back(name);
  return names;
}

}  // namespace accel::config
