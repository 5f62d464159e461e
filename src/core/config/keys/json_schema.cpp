#include "core/config/keys/json_schema.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.hpp"
#include "core/config/keys/document.hpp"
#include "core/config/keys/keys.hpp"

namespace accel::config {
namespace {

using Json = nlohmann::ordered_json;

// A null asks for the default, everywhere but in a list. A text may be written without quotes, so that a YAML
// parser takes it for a number or a bool.
constexpr std::initializer_list<const char*> kScalarOrNull = {"string", "number", "boolean", "null"};
constexpr std::initializer_list<const char*> kItem = {"string", "number", "boolean"};
// These words are bools for accel and for YAML 1.1. For YAML 1.2, which editors follow, some are strings.
constexpr const char* kBoolWords = "^([Tt]rue|TRUE|[Ff]alse|FALSE|[Yy]es|YES|[Nn]o|NO|[Oo]n|ON|[Oo]ff|OFF)$";

Json types(std::initializer_list<const char*> names) {
  return {{"type", std::vector<std::string>(names.begin(), names.end())}};
}

/// A whole number is written as one.
Json number_of(double value) {
  constexpr double kExact = 9007199254740992.0;
  if (std::trunc(value) == value && std::abs(value) <= kExact) return static_cast<std::int64_t>(value);
  return value;
}

void add_range(const Key& key, Json& schema) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (key.min != -kInfinity) schema["minimum"] = number_of(key.min);
  if (key.max != kInfinity) schema["maximum"] = number_of(key.max);
  if (key.above != -kInfinity) schema["exclusiveMinimum"] = number_of(key.above);
  if (key.below != kInfinity) schema["exclusiveMaximum"] = number_of(key.below);
}

Json choices_of(const Key& key) {
  auto values = Json::array();
  for (const std::string& choice : split(key.choices, '|')) {
    if (key.type == Type::kInt) {
      values.push_back(std::stoll(choice));
    } else {
      values.push_back(choice);
    }
  }
  values.push_back(nullptr);
  return {{"enum", std::move(values)}};
}

Json type_of(const Key& key) {
  if (!key.choices.empty()) return choices_of(key);
  Json schema = Json::object();
  switch (key.type) {
    case Type::kBool:
      schema = types({"boolean", "string", "null"});
      schema["pattern"] = kBoolWords;
      break;
    case Type::kInt:
      schema = types({"integer", "null"});
      add_range(key, schema);
      break;
    case Type::kNumber:
      schema = types({"number", "null"});
      add_range(key, schema);
      break;
    case Type::kString:
    case Type::kScalar:
      schema = types(kScalarOrNull);
      break;
    case Type::kStrings:
      schema = types({"array", "string", "number", "boolean", "null"});
      schema["items"] = types(kItem);
      break;
    case Type::kNumbers:
      schema = types({"array", "null"});
      schema["items"] = types({"number"});
      add_range(key, schema["items"]);
      break;
    case Type::kTexts:
      schema = types({"object", "null"});
      schema["additionalProperties"] = types(kScalarOrNull);
      break;
    case Type::kSections:
      schema = types({"array", "null"});
      schema["items"] = types({"object"});
      schema["items"]["additionalProperties"] = types(kScalarOrNull);
      break;
    case Type::kAny:
      break;
  }
  return schema;
}

/// What of the key's values accel supports; empty if it supports all.
std::string support_of(const Key& key) {
  if (!key.no_effect.empty()) return fmt::format("It has no effect: {}.", key.no_effect);
  if (key.type == Type::kAny) return "It is for a system that accel does not have.";
  if (key.built == kEverything) return {};
  if (key.built.empty()) return "It is not supported yet.";
  return fmt::format("accel supports: {}.", fmt::join(split(key.built, '|'), ", "));
}

std::string description_of(const Key& key) {
  std::vector<std::string> sentences;
  if (!key.help.empty()) sentences.push_back(fmt::format("{}.", key.help));
  if (!key.standard.empty()) sentences.push_back(fmt::format("Default: {}.", key.standard));
  if (key.has(kRequired)) sentences.emplace_back("Required.");
  if (const std::string support = support_of(key); !support.empty()) sentences.push_back(support);
  return fmt::format("{}", fmt::join(sentences, " "));
}

Json schema_of(const Key& key) {
  Json schema = type_of(key);
  if (const std::string text = description_of(key); !text.empty()) schema["description"] = text;
  if (const nlohmann::json value = default_of(key); !value.is_null()) schema["default"] = value;
  return schema;
}

Json empty_section() {
  Json section = types({"object", "null"});
  section["additionalProperties"] = false;
  section["properties"] = Json::object();
  return section;
}

/// Adds a key to `root`, and the sections above it.
void add_key(const Key& key, Json& root) {
  Json* properties = &root["properties"];
  std::string pointer = "#/properties";
  std::string_view name = key.path;
  std::string_view section;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
    const std::string part(name.substr(0, dot));
    if (!properties->contains(part)) (*properties)[part] = empty_section();
    properties = &(*properties)[part]["properties"];
    pointer += fmt::format("/{}/properties", part);
    name.remove_prefix(dot + 1);
    section = key.path.substr(0, key.path.size() - name.size() - 1);
  }
  (*properties)[std::string(name)] = schema_of(key);
  if (const std::string_view prefix = section_prefix(section); !prefix.empty())
    (*properties)[fmt::format("{}{}", prefix, name)] = {{"$ref", fmt::format("{}/{}", pointer, name)}};
}

}  // namespace

Json json_schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "A configuration of accel"}};
  root.update(empty_section());
  for (const auto table : key_tables()) {
    for (const Key& key : table) add_key(key, root);
  }
  return root;
}

}  // namespace accel::config
