#include "core/config/keys/member.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "core/config/keys/document.hpp"
#include "core/config/keys/parameter_groups.hpp"
#include "core/config/names.hpp"

namespace accel::config {
namespace {

using nlohmann::json;

using NamedTexts = std::map<std::string, std::string>;

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

template <class T>
constexpr bool is_sequence = false;
template <class T>
constexpr bool is_sequence<std::vector<T>> = true;
template <class T, std::size_t N>
constexpr bool is_sequence<std::array<T, N>> = true;

template <class T>
constexpr bool is_text =
    std::is_enum_v<T> || std::is_same_v<T, std::string> || std::is_same_v<T, std::filesystem::path>;

/// The first of a bool's two names is that of false.
std::string_view name_of_bool(bool value, std::string_view choices) {
  const std::size_t bar = choices.find('|');
  return value ? choices.substr(bar + 1) : choices.substr(0, bar);
}

template <class T>
json written(const T& value, std::string_view choices) {
  if constexpr (is_optional<T>) {
    return value ? written(*value, choices) : json(nullptr);
  } else if constexpr (is_sequence<T>) {
    json list = json::array();
    for (const auto& item : value) list.push_back(written(item, choices));
    return list;
  } else if constexpr (std::is_same_v<T, Rename>) {
    return {{"pattern", value.pattern}, {"replacement", value.replacement}};
  } else if constexpr (std::is_same_v<T, MixturePart>) {
    return {{"path", value.path}, {"weight", value.weight}};
  } else if constexpr (std::is_same_v<T, NamedOutput>) {
    return {{"name", value.name}, {"output", value.output}};
  } else if constexpr (std::is_same_v<T, ParameterGroup>) {
    return json_of(value);
  } else if constexpr (std::is_same_v<T, ProfileConfig>) {
    return {value.first_step, value.last_step};
  } else if constexpr (std::is_enum_v<T>) {
    return name_of(value);
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return value.string();
  } else if constexpr (std::is_same_v<T, bool>) {
    return choices.empty() ? json(value) : json(name_of_bool(value, choices));
  } else {
    return value;
  }
}

template <class T>
void read_integer(const json& document, const std::string& where, T& value) {
  if (!document.is_number_integer())
    fail_resolved(where, fmt::format("expected an integer, found {}", document.dump()));
  const bool fits = document.is_number_unsigned() ? std::in_range<T>(document.get<std::uint64_t>())
                                                  : std::in_range<T>(document.get<std::int64_t>());
  if (!fits) fail_resolved(where, fmt::format("{} is out of range", document.dump()));
  value = document.get<T>();
}

std::string read_text(const json& document, const std::string& where) {
  if (!document.is_string())
    fail_resolved(where, fmt::format("expected a string, found {}", document.dump()));
  return document.get<std::string>();
}

void read_bool(const json& document, const std::string& where, std::string_view choices, bool& value) {
  if (choices.empty()) {
    if (!document.is_boolean())
      fail_resolved(where, fmt::format("expected true or false, found {}", document.dump()));
    value = document.get<bool>();
    return;
  }
  const std::string text = read_text(document, where);
  value = text == name_of_bool(true, choices);
  if (!value && text != name_of_bool(false, choices))
    fail_resolved(where, fmt::format("'{}' is not known", text));
}

template <class T>
void read(const json& document, const std::string& where, std::string_view choices, T& value);

template <class T>
void read_sequence(const json& document, const std::string& where, std::string_view choices, T& value) {
  if (!document.is_array())
    fail_resolved(where, fmt::format("expected an array, found {}", document.type_name()));
  if constexpr (requires { value.resize(0); }) {
    value.resize(document.size());
  } else if (document.size() != value.size()) {
    fail_resolved(where, fmt::format("expected {} items, found {}", value.size(), document.size()));
  }
  for (std::size_t i = 0; i < document.size(); ++i)
    read(document[i], fmt::format("{}[{}]", where, i), choices, value[i]);
}

template <class T>
void read(const json& document, const std::string& where, std::string_view choices, T& value) {
  if constexpr (is_optional<T>) {
    value.reset();
    if (!document.is_null()) read(document, where, choices, value.emplace());
  } else if constexpr (is_sequence<T>) {
    read_sequence(document, where, choices, value);
  } else if constexpr (std::is_same_v<T, NamedTexts>) {
    if (!document.is_object())
      fail_resolved(where, fmt::format("expected an object, found {}", document.type_name()));
    for (const auto& [name, text] : document.items()) value[name] = read_text(text, where + "." + name);
  } else if constexpr (std::is_same_v<T, Rename>) {
    if (!document.is_object() || !document.contains("pattern") || !document.contains("replacement"))
      fail_resolved(where, fmt::format("expected a pattern and a replacement, found {}", document.dump()));
    value = {read_text(document.at("pattern"), where + ".pattern"),
             read_text(document.at("replacement"), where + ".replacement")};
  } else if constexpr (std::is_same_v<T, MixturePart>) {
    if (!document.is_object() || !document.contains("path") || !document.contains("weight"))
      fail_resolved(where, fmt::format("expected a path and a weight, found {}", document.dump()));
    read(document.at("path"), where + ".path", choices, value.path);
    read(document.at("weight"), where + ".weight", choices, value.weight);
  } else if constexpr (std::is_same_v<T, NamedOutput>) {
    if (!document.is_object() || !document.contains("name") || !document.contains("output"))
      fail_resolved(where, fmt::format("expected a name and an output, found {}", document.dump()));
    value = {read_text(document.at("name"), where + ".name"),
             read_text(document.at("output"), where + ".output")};
  } else if constexpr (std::is_same_v<T, ParameterGroup>) {
    value = group_from_json(document, where);
  } else if constexpr (std::is_same_v<T, ProfileConfig>) {
    std::array<std::int64_t, 2> steps{};
    read_sequence(document, where, choices, steps);
    value = {steps[0], steps[1]};
  } else if constexpr (std::is_same_v<T, bool>) {
    read_bool(document, where, choices, value);
  } else if constexpr (std::is_integral_v<T>) {
    read_integer(document, where, value);
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!document.is_number())
      fail_resolved(where, fmt::format("expected a number, found {}", document.dump()));
    value = document.get<T>();
  } else if constexpr (std::is_enum_v<T>) {
    const std::string text = read_text(document, where);
    const std::optional<T> named = enum_named<T>(text);
    if (!named) fail_resolved(where, fmt::format("'{}' is not known", text));
    value = *named;
  } else {
    value = read_text(document, where);
  }
}

double weight_of(const std::string& path, const std::string& text) {
  double weight = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  if (error == std::errc{} && end == text.data() + text.size() && std::isfinite(weight) && weight > 0)
    return weight;
  throw Error(ErrorKind::kUsage, fmt::format("must give '{}' a weight above 0, found '{}'", path, text));
}

/// The setting as the type that settings of the member have.
template <class T>
const T& as(const Value& setting) {
  return std::get<T>(setting);
}

template <class T>
void take(const Value& setting, std::string_view choices, T& value) {
  if constexpr (is_optional<T>) {
    take(setting, choices, value.emplace());
  } else if constexpr (std::is_same_v<T, bool>) {
    value = choices.empty() ? as<bool>(setting) : as<std::string>(setting) == name_of_bool(true, choices);
  } else if constexpr (std::is_integral_v<T>) {
    value = static_cast<T>(as<std::int64_t>(setting));
  } else if constexpr (std::is_enum_v<T>) {
    value = enum_named<T>(as<std::string>(setting)).value();
  } else if constexpr (is_text<T>) {
    value = as<std::string>(setting);
  } else if constexpr (std::is_same_v<T, std::vector<Rename>> ||
                       std::is_same_v<T, std::vector<NamedOutput>>) {
    value.clear();
    for (const auto& [left, right] : as<Texts>(setting)) value.push_back({left, right});
  } else if constexpr (std::is_same_v<T, std::vector<MixturePart>>) {
    value.clear();
    for (const auto& [path, weight] : as<Texts>(setting)) value.push_back({path, weight_of(path, weight)});
  } else if constexpr (std::is_same_v<T, NamedTexts>) {
    value = {as<Texts>(setting).begin(), as<Texts>(setting).end()};
  } else if constexpr (std::is_same_v<T, std::vector<ParameterGroup>>) {
    value.clear();
    for (const Texts& group : as<std::vector<Texts>>(setting)) value.push_back(group_of(group));
  } else if constexpr (std::is_same_v<T, std::array<double, 2>>) {
    const auto& list = as<std::vector<double>>(setting);
    if (list.size() != value.size())
      throw Error(ErrorKind::kUsage, fmt::format("must be two numbers, found {}", list.size()));
    value = {list.front(), list.back()};
  } else if constexpr (std::is_same_v<T, std::vector<int>> || std::is_same_v<T, ProfileConfig>) {
    throw std::logic_error("only resolve/ sets this member");
  } else {
    value = as<T>(setting);
  }
}

}  // namespace

template <class T>
const Codec& codec_of() {
  static constexpr Codec kCodec = {
      [](const void* value, std::string_view choices) {
        return written(*static_cast<const T*>(value), choices);
      },
      [](const json& document, const std::string& where, std::string_view choices, void* value) {
        read(document, where, choices, *static_cast<T*>(value));
      },
      [](const Value& setting, std::string_view choices, void* value) {
        take(setting, choices, *static_cast<T*>(value));
      }};
  return kCodec;
}

template const Codec& codec_of<bool>();
template const Codec& codec_of<int>();
template const Codec& codec_of<std::int64_t>();
template const Codec& codec_of<std::uint32_t>();
template const Codec& codec_of<std::uint64_t>();
template const Codec& codec_of<double>();
template const Codec& codec_of<std::string>();
template const Codec& codec_of<std::filesystem::path>();
template const Codec& codec_of<DistributedType>();
template const Codec& codec_of<WrapPolicy>();
template const Codec& codec_of<StateDictType>();
template const Codec& codec_of<VerifyOnResume>();
template const Codec& codec_of<Backend>();
template const Codec& codec_of<CommHookType>();
template const Codec& codec_of<Float8Recipe>();
template const Codec& codec_of<std::optional<double>>();
template const Codec& codec_of<std::optional<ProfileConfig>>();
template const Codec& codec_of<std::optional<bool>>();
template const Codec& codec_of<std::optional<std::array<double, 2>>>();
template const Codec& codec_of<std::vector<double>>();
template const Codec& codec_of<std::vector<int>>();
template const Codec& codec_of<std::vector<std::string>>();
template const Codec& codec_of<std::vector<Rename>>();
template const Codec& codec_of<std::vector<MixturePart>>();
template const Codec& codec_of<std::map<std::string, std::string>>();
template const Codec& codec_of<std::vector<NamedOutput>>();
template const Codec& codec_of<std::vector<ParameterGroup>>();

}  // namespace accel::config
