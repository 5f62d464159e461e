#include "core/config/keys/parameter_groups.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/name_pattern.hpp"
#include "base/text.hpp"
#include "core/config/keys/document.hpp"

namespace accel::config {
namespace {

using nlohmann::json;

constexpr const char* kExample = "for example {match: embed, lr: 1e-4, weight_decay: 0}";

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorKind::kUsage, what).hint(kExample); }

double number_of(const std::string& name, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(value) && value >= 0)
    return value;
  fail(fmt::format("has a group whose '{}' must be a number, at least 0; found '{}'", name, text));
}

bool bool_of(const std::string& name, const std::string& text) {
  const std::string word = lower_case(text);
  if (word == "true" || word == "false") return word == "true";
  fail(fmt::format("has a group whose '{}' must be true or false; found '{}'", name, text));
}

void set(ParameterGroup& group, const std::string& name, const std::string& text) {
  if (name == "match") {
    NamePattern{text};
    group.match = text;
  } else if (name == "lr") {
    group.lr = number_of(name, text);
  } else if (name == "weight_decay") {
    group.weight_decay = number_of(name, text);
  } else if (name == "frozen") {
    group.frozen = bool_of(name, text);
  } else if (name == "optimizer") {
    if (find_optimizer(text) == nullptr) {
      fail(fmt::format("has a group whose 'optimizer' must be one of {}; found '{}'", kOptimizerNames, text));
    }
    group.optimizer = text;
  } else {
    fail(
        fmt::format("has a group with the unknown key '{}'; it may have match, lr, weight_decay, frozen and "
                    "optimizer",
                    name));
  }
}

}  // namespace

ParameterGroup group_of(const Texts& section) {
  ParameterGroup group;
  for (const auto& [name, text] : section) set(group, name, text);
  if (group.match.empty()) fail("has a group without 'match', the pattern for the names of its parameters");
  if (group.frozen && (group.lr || group.weight_decay || !group.optimizer.empty()))
    fail(fmt::format("has the frozen group '{}', which can have no other key than match", group.match));
  return group;
}

json json_of(const ParameterGroup& group) {
  json document = {{"match", group.match}};
  if (group.lr) document["lr"] = *group.lr;
  if (group.weight_decay) document["weight_decay"] = *group.weight_decay;
  if (group.frozen) document["frozen"] = true;
  if (!group.optimizer.empty()) document["optimizer"] = group.optimizer;
  return document;
}

ParameterGroup group_from_json(const json& document, const std::string& where) {
  if (!document.is_object())
    fail_resolved(where, fmt::format("expected an object, found {}", document.type_name()));
  Texts section;
  for (const auto& [name, value] : document.items())
    section.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  try {
    return group_of(section);
  } catch (const Error& error) {
    fail_resolved(where, error.message());
  }
}

}  // namespace accel::config
