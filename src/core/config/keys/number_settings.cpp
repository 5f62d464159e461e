#include "core/config/keys/number_settings.hpp"

#include <nlohmann/json.hpp>

#include "core/config/keys/document.hpp"

namespace accel::config {

std::map<std::string, std::string> number_settings(const Config& config) {
  std::map<std::string, std::string> settings;
  visit_resolved(config, [&](const Key& key, const nlohmann::json& value) {
    if (key.has(kNoNumbers)) return;
    settings[std::string(key.path)] = value.is_string() ? value.get<std::string>() : value.dump();
  });
  return settings;
}

bool follows_mixed_precision(const std::string& key) {
  return key.starts_with("fsdp_config.") && key.ends_with("_dtype");
}

}  // namespace accel::config
