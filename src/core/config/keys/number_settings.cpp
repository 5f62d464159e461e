#include "core/config/keys/number_settings.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/config/keys/document.hpp"

namespace accel::config {
std::map<std::string, std::string> number_settings(const Config& config) {
  std::map<std::string, std::string> settings;
  visit_resolved(config, [&](const Key& key, const nlohmann::json& value) {
    if (key.has(kNoNumbers) && !(key.numbers_if != nullptr && key.numbers_if(config))) return;
    settings[std::string(key.path)] = value.is_string() ? value.get<std::string>() : value.dump();
  });
  return settings;
}

bool follows_mixed_precision(const std::string& key) {
  return key.starts_with("fsdp_config.") && key.ends_with("_dtype");
}

std::vector<std::string> changed_settings(const std::map<std::string, std::string>& before,
                                          const std::map<std::string, std::string>& now) {
  const auto has_changed = [&](const std::string& key) {
    const auto old = before.find(key);
    const auto own = now.find(key);
    return old != before.end() && own != now.end() && old->second != own->second;
  };
  const bool other_precision = has_changed("mixed_precision");
  std::vector<std::string> changes;
  for (const auto& [key, value] : now) {
    if (!has_changed(key) || (other_precision && follows_mixed_precision(key))) continue;
    const auto text = [](const std::string& setting) { return setting.empty() ? "not set" : setting; };
    changes.push_back(fmt::format("{} was {} and is {}", key, text(before.at(key)), text(value)));
  }
  return changes;
}

}  // namespace accel::config
