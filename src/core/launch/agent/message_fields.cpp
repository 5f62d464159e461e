#include "core/launch/agent/message_fields.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace accel::launch {

using nlohmann::json;

const json& field(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw Error(ErrorKind::kFailure, fmt::format("'{}' is not there", name));
  return *found;
}

std::string text_in(const json& object, const char* name, std::size_t most_bytes) {
  const json& value = field(object, name);
  if (!value.is_string()) throw Error(ErrorKind::kFailure, fmt::format("'{}' is not a text", name));
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() > most_bytes)
    throw Error(ErrorKind::kFailure,
                fmt::format("'{}' has {} bytes, and at most {} are expected", name, text.size(), most_bytes));
  return text;
}

int int_in(const json& object, const char* name, int least, int most) {
  const json& value = field(object, name);
  const bool is_int = value.is_number_integer();
  const bool fits = is_int && (value.is_number_unsigned()
                                   ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT32_MAX)
                                   : value.get<std::int64_t>() >= INT32_MIN);
  const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
  if (fits && number >= least && number <= most) return static_cast<int>(number);
  throw Error(ErrorKind::kFailure,
              fmt::format("'{}' is {}, and {} is expected", name, value.dump(),
                          least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most)));
}

bool bool_in(const json& object, const char* name) {
  const json& value = field(object, name);
  if (!value.is_boolean())
    throw Error(ErrorKind::kFailure, fmt::format("'{}' is neither true nor false", name));
  return value.get<bool>();
}

}  // namespace accel::launch
