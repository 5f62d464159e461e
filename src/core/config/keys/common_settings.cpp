#include "core/config/keys/common_settings.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/config/keys/document.hpp"

namespace accel::config {
namespace {

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
  visit_resolved(config, [&](const Key& key, const nlohmann::json& value) {
    if (key.has(kOneMachine)) return;
    settings[std::string(key.path)] = value.is_string() ? value.get<std::string>() : value.dump();
  });
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
