#include "core/config/keys/document.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"

namespace accel::config {
namespace {

using nlohmann::json;

/// Calls `visit` with each key that has a member.
template <class Visit>
void visit_members(const Visit& visit) {
  for (const std::span<const Key> keys : {run_keys(), training_keys(), resolved_values_without_key()}) {
    for (const Key& key : keys) {
      if (key.member.reach != nullptr) visit(key);
    }
  }
}

json::json_pointer pointer_to(std::string_view path) {
  json::json_pointer pointer;
  for (const std::string& part : split(path, '.')) pointer /= part;
  return pointer;
}

/// Refuses what no key has.
void check_names(const json& document, const std::string& path, const std::set<std::string>& known) {
  if (known.contains(path)) return;
  const auto is_above = [&](const std::string& key) { return is_below(key, path); };
  if (std::none_of(known.begin(), known.end(), is_above)) fail_resolved(path, "is not known");
  if (!document.is_object())
    fail_resolved(path, fmt::format("expected an object, found {}", document.type_name()));
  for (const auto& [name, value] : document.items())
    check_names(value, path.empty() ? name : path + "." + name, known);
}

/// The only value that accel supports; null if there are several or none.
json only_supported(const Key& key) {
  if (key.built.empty() || key.built == kEverything || key.built.find('|') != std::string_view::npos)
    return nullptr;
  if (key.type == Type::kBool) return key.built == "true";
  if (key.type == Type::kInt) return std::stoll(std::string(key.built));
  return key.built;
}

/// The names of a bool. A value that resolve/ computes is written as it is in Config.
std::string_view names_of(const Key& key) { return key.has(kComputed) ? std::string_view() : key.choices; }

}  // namespace

void fail_resolved(std::string_view where, std::string_view found) {
  throw Error(ErrorKind::kUsage, fmt::format("resolved configuration: '{}': {}", where, found))
      .hint("config.resolved.json is written by `accel launch`; do not edit it");
}

json resolved_value(const Key& key, const Config& config) {
  return key.member.codec().write(key.member.reach(config), names_of(key));
}

json default_of(const Key& key) {
  if (key.has(kRequired) || key.has(kComputed) || !key.standard.empty()) return nullptr;
  if (key.member.reach == nullptr) return only_supported(key);
  Config config;
  config.training.emplace().data.eval.emplace();
  json value = resolved_value(key, config);
  const bool is_none = value.empty() || (value.is_string() && value.get_ref<const std::string&>().empty());
  if (is_none) return nullptr;
  // 20.0 is written as 20.
  if (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>())
    return value.get<std::int64_t>();
  return value;
}

std::string default_in_words(const Key& key) {
  if (!key.standard.empty()) return std::string(key.standard);
  const json value = default_of(key);
  if (value.is_null()) return {};
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array() || !value.front().is_string()) return value.dump();
  return fmt::format("[{}]", fmt::join(value.get<std::vector<std::string>>(), ", "));
}

void* value_to_set(const Key& key, Config& config) {
  return const_cast<void*>(key.member.reach(config));  // `config` is not const.
}

void visit_resolved(const Config& config,
                    const std::function<void(const Key& key, const json& value)>& visit) {
  visit_members([&](const Key& key) {
    if (key.member.reach(config) != nullptr) visit(key, resolved_value(key, config));
  });
}

json config_to_json(const Config& config) {
  json document = json::object();
  visit_resolved(config, [&](const Key& key, const json& value) { document[pointer_to(key.path)] = value; });
  return document;
}

Config config_from_json(const json& document) {
  Config config;
  std::set<std::string> known;
  visit_members([&](const Key& key) { known.emplace(key.path); });
  check_names(document, "", known);
  if (document.contains("training")) config.training.emplace();
  if (document.contains(pointer_to("training.data.eval"))) config.training->data.eval.emplace();
  visit_members([&](const Key& key) {
    void* const value = value_to_set(key, config);
    if (value == nullptr) return;
    const json::json_pointer pointer = pointer_to(key.path);
    if (!document.contains(pointer)) fail_resolved(key.path, "is missing");
    key.member.codec().read(document.at(pointer), std::string(key.path), names_of(key), value);
  });
  return config;
}

}  // namespace accel::config
