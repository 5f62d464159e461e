#include "core/config/keys/keys.hpp"

#include <algorithm>
#include <set>

namespace accel::config {
namespace {

/// The part of `path` below `section`, without the dot; empty if `path` is not below it.
std::string_view below(std::string_view path, std::string_view section) {
  if (section.empty()) return path;
  if (path.size() <= section.size() || !path.starts_with(section) || path[section.size()] != '.') return {};
  return path.substr(section.size() + 1);
}

}  // namespace

std::array<std::span<const Key>, 3> key_tables() { return {run_keys(), training_keys(), foreign_keys()}; }

const Key* find_key(std::string_view path) {
  for (const auto table : key_tables()) {
    const auto found = std::find_if(table.begin(), table.end(), [&](const Key& k) { return k.path == path; });
    if (found != table.end()) return &*found;
  }
  return nullptr;
}

std::optional<std::string> key_named_last(std::string_view name) {
  std::string end(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  std::replace(end.begin(), end.end(), '-', '_');
  std::optional<std::string> found;
  for (const auto table : {run_keys(), training_keys()}) {
    for (const Key& key : table) {
      if (key.path.substr(key.path.rfind('.') + 1) != end || end.empty()) continue;
      if (found) return std::nullopt;
      found = key.path;
    }
  }
  return found;
}

bool is_below(std::string_view path, std::string_view section) { return !below(path, section).empty(); }

bool is_section(std::string_view path) {
  for (const auto table : key_tables()) {
    if (std::any_of(table.begin(), table.end(), [&](const Key& k) { return is_below(k.path, path); }))
      return true;
  }
  return false;
}

std::vector<std::string> names_in_section(std::string_view section) {
  std::set<std::string> names;
  for (const auto table : key_tables()) {
    for (const Key& key : table) {
      const std::string_view rest = below(key.path, section);
      if (!rest.empty()) names.emplace(rest.substr(0, rest.find('.')));
    }
  }
  return {names.begin(), names.end()};
}

std::string_view section_prefix(std::string_view section) {
  if (section == "fsdp_config") return "fsdp_";
  if (section == "parallelism_config") return "parallelism_config_";
  if (section == "dynamo_config") return "dynamo_";
  if (section == "fp8_config") return "fp8_";
  if (section == "megatron_lm_config") return "megatron_lm_";
  return {};
}

std::string_view canonical_key(std::string_view section, std::string_view key) {
  const std::string_view prefix = section_prefix(section);
  if (!prefix.empty() && key.starts_with(prefix)) key.remove_prefix(prefix.size());
  if (section == "fsdp_config" && key == "backward_prefetch_policy") return "backward_prefetch";
  return key;
}

}  // namespace accel::config
