#include "ckpt/convert/objects_json.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/error_context.hpp"

namespace accel::ckpt {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const pickle::Value& value);

Json json_of_number(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}

Json json_of_pairs(const pickle::Pairs& pairs) {
  Json object = Json::object();
  for (const auto& [key, item] : pairs) {
    const auto* text = key.get<std::string>();
    const auto* number = key.get<std::int64_t>();
    object[text != nullptr     ? *text
           : number != nullptr ? std::to_string(*number)
                               : pickle::describe(key)] = json_of(item);
  }
  return object;
}

// The pickle reader limits the depth of the recursion.
Json json_of(const pickle::Value& value) {
  if (value.is_none()) return nullptr;
  if (const auto* flag = value.get<bool>()) return *flag;
  if (const auto* number = value.get<std::int64_t>()) return *number;
  if (const auto* number = value.get<double>()) return json_of_number(*number);
  if (const auto* text = value.get<std::string>()) return *text;
  if (const pickle::Pairs* pairs = pickle::mapping_of(value)) return json_of_pairs(*pairs);
  if (const pickle::Values* items = pickle::sequence_of(value)) {
    Json array = Json::array();
    for (const pickle::Value& item : *items) array.push_back(json_of(item));
    return array;
  }
  return pickle::describe(value);
}

Json& child_of(Json& parent, const PathKey& key) {
  if (const auto* index = std::get_if<std::int64_t>(&key)) {
    if (parent.is_null()) parent = Json::array();
    if (parent.is_array() && *index >= 0 && static_cast<std::size_t>(*index) <= parent.size()) {
      if (static_cast<std::size_t>(*index) == parent.size()) parent.push_back(nullptr);
      return parent[static_cast<std::size_t>(*index)];
    }
  } else {
    if (parent.is_null()) parent = Json::object();
    if (parent.is_object()) return parent[std::get<std::string>(key)];
  }
  throw Error(ErrorKind::kFailure,
              "its path contradicts the path of another object, or leaves a hole in a list");
}

}  // namespace

std::string to_json(const std::vector<OutputObject>& objects) {
  // The objects are sorted by path, so that a list is filled from its front.
  std::map<StatePath, const pickle::Value*> sorted;
  for (const auto& [path, value] : objects) sorted.emplace(path, &value);
  Json document = Json::object();
  for (const auto& object : sorted) {
    with_context("object", fqn_of(object.first), [&] {
      Json* place = &document;
      for (const PathKey& key : object.first) place = &child_of(*place, key);
      *place = json_of(*object.second);
    });
  }
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace accel::ckpt
