#pragma once

#include <array>
#include <concepts>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/config/config.hpp"
#include "core/config/keys/type.hpp"
#include "core/config/value.hpp"

namespace accel::config {

/// How values of one C++ type become JSON and are made of JSON and of settings. `value` points to such a
/// value.
///
/// A bool whose key has two choices is whether it has the second of them.
struct Codec {
  nlohmann::json (*write)(const void* value, std::string_view choices);
  /// Throws an Error of kind kUsage that names `where`, if the document has another form.
  void (*read)(const nlohmann::json& document, const std::string& where, std::string_view choices,
               void* value);
  /// Takes a checked setting. Throws an Error of kind kUsage without context, if the type cannot hold it.
  void (*set)(const Value& setting, std::string_view choices, void* value);
};

/// The codec of a type. member.cpp has those of all types that Config has.
template <class T>
const Codec& codec_of();

/// A value in Config.
struct Member {
  Type type = Type::kString;
  /// The value; nullptr if it lies in an optional that is empty.
  const void* (*reach)(const Config&) = nullptr;
  const Codec& (*codec)() = nullptr;
};

namespace detail {

template <class T>
constexpr Type type_for() {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>) return Type::kBool;
  if constexpr (std::is_integral_v<T>) return Type::kInt;
  if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, std::optional<double>>) return Type::kNumber;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return Type::kStrings;
  if constexpr (std::is_same_v<T, std::optional<std::array<double, 2>>>) return Type::kNumbers;
  if constexpr (std::is_same_v<T, std::vector<double>>) return Type::kNumbers;
  if constexpr (std::is_same_v<T, std::vector<Rename>> || std::is_same_v<T, std::vector<NamedOutput>>)
    return Type::kTexts;
  if constexpr (std::is_same_v<T, std::vector<MixturePart>>) return Type::kTexts;
  if constexpr (std::is_same_v<T, std::map<std::string, std::string>>) return Type::kTexts;
  if constexpr (std::is_same_v<T, std::vector<ParameterGroup>>) return Type::kSections;
  return Type::kString;
}

template <class T>
const T* present(const T& section) {
  return &section;
}

template <class T>
const T* present(const std::optional<T>& section) {
  return section ? &*section : nullptr;
}

template <class T, class Section>
const T* reach(const Section& section, T Section::*member) {
  return &(section.*member);
}

template <class Inner, class Section, class... Rest>
auto reach(const Section& section, Inner Section::*member, Rest... rest) {
  using Result = decltype(reach(*present(section.*member), rest...));
  const auto* const inner = present(section.*member);
  return inner == nullptr ? Result(nullptr) : reach(*inner, rest...);
}

}  // namespace detail

/// The member at the end of a path of pointers to members that begins in Config. Optionals between are looked
/// into.
template <auto... Path>
inline constexpr Member member = [] {
  using T = std::remove_cvref_t<decltype(*detail::reach(std::declval<const Config&>(), Path...))>;
  return Member{detail::type_for<T>(),
                [](const Config& config) -> const void* { return detail::reach(config, Path...); },
                &codec_of<T>};
}();

}  // namespace accel::config
