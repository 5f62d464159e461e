#include "core/config/settings/convert.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.hpp"
#include "base/text.hpp"

namespace accel::config {
namespace {

[[noreturn]] void fail(const Key& key, const YamlNode& node, std::string_view expected) {
  throw Error(ErrorKind::kUsage, fmt::format("{}: '{}' must be {}, found {}", text_of(node.origin), key.path,
                                             expected, describe(node)));
}

/// A file and a flag have the words of YAML 1.1, and a variable all that Accelerate's str_to_bool() takes.
std::optional<bool> parse_bool(const YamlNode& node) {
  static constexpr std::array<std::string_view, 6> kTrue = {"true", "yes", "on", "1", "y", "t"};
  static constexpr std::array<std::string_view, 6> kFalse = {"false", "no", "off", "0", "n", "f"};
  const std::size_t words = node.origin.layer == Origin::Layer::kEnvironment ? kTrue.size() : 3;
  const std::string text = lower_case(node.text);
  for (std::size_t i = 0; i < words; ++i) {
    if (text == kTrue[i] || text == kFalse[i]) return text == kTrue[i];
  }
  return std::nullopt;
}

template <class T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional<T>(value) : std::nullopt;
}

std::optional<double> parse_number(const YamlNode& node) {
  if (node.quoted) return std::nullopt;
  const std::optional<double> value = parse_whole<double>(node.text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<std::int64_t> parse_integer(const YamlNode& node) {
  if (node.quoted) return std::nullopt;
  if (const auto value = parse_whole<std::int64_t>(node.text)) return value;
  // Large counts are often written as 1e8.
  const std::optional<double> number = parse_number(node);
  constexpr double kExact = 9007199254740992.0;
  if (!number || std::trunc(*number) != *number || std::abs(*number) > kExact) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

void check_range(const Key& key, const YamlNode& node, double value) {
  if (value < key.min) fail(key, node, fmt::format("at least {}", key.min));
  if (value > key.max) fail(key, node, fmt::format("at most {:.10g}", key.max));
  if (value <= key.above) fail(key, node, fmt::format("greater than {}", key.above));
  if (value >= key.below) fail(key, node, fmt::format("less than {}", key.below));
}

const std::string& scalar(const Key& key, const YamlNode& node, std::string_view expected) {
  if (node.kind != YamlNode::Kind::kScalar) fail(key, node, expected);
  return node.text;
}

std::string choice(const Key& key, const YamlNode& node, const std::string& text) {
  if (key.choices.empty()) return text;
  const std::vector<std::string> choices = split(key.choices, '|');
  for (const std::string& candidate : choices) {
    if (lower_case(candidate) == lower_case(text)) return candidate;
  }
  Error error(ErrorKind::kUsage, fmt::format("{}: '{}' must be one of {}; found '{}'", text_of(node.origin),
                                             key.path, fmt::join(choices, ", "), text));
  const auto near = key.type == Type::kInt ? std::nullopt : nearest(text, choices);
  if (near) throw std::move(error).hint(fmt::format("did you mean '{}'?", *near));
  throw std::move(error);
}

std::vector<std::string> strings(const Key& key, const YamlNode& node) {
  std::vector<std::string> list;
  if (node.kind == YamlNode::Kind::kSequence) {
    for (const YamlNode& item : node.items) list.push_back(scalar(key, item, "a list of strings"));
  } else {
    for (const std::string& part : split(scalar(key, node, "a list of strings"), ',')) {
      const std::string_view word = trim(part);
      if (!word.empty()) list.emplace_back(word);
    }
  }
  return list;
}

Texts texts(const Key& key, const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kMap) fail(key, node, "a section of texts");
  Texts list;
  for (const YamlNode::Entry& entry : node.entries) {
    if (std::any_of(list.begin(), list.end(), [&](const auto& pair) { return pair.first == entry.key; })) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("{}: '{}' is set twice in '{}'", text_of(entry.origin), entry.key, key.path));
    }
    // An empty text takes a match away, and YAML's null is the easiest way to write one.
    list.emplace_back(entry.key, entry.value.kind == YamlNode::Kind::kNull
                                     ? std::string()
                                     : scalar(key, entry.value, "a section of texts"));
  }
  return list;
}

std::vector<Texts> sections(const Key& key, const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kSequence) fail(key, node, "a list of sections");
  std::vector<Texts> list;
  for (const YamlNode& item : node.items) list.push_back(texts(key, item));
  return list;
}

std::vector<double> numbers(const Key& key, const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kSequence) fail(key, node, "a list of numbers");
  std::vector<double> list;
  for (const YamlNode& item : node.items) {
    if (item.kind != YamlNode::Kind::kScalar) fail(key, item, "a list of numbers");
    const std::optional<double> number = parse_number(item);
    if (!number) fail(key, item, "a list of numbers");
    check_range(key, item, *number);
    list.push_back(*number);
  }
  return list;
}

}  // namespace

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return fmt::format("'{}'", node.text);
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMap:
      break;
  }
  return "a section";
}

Value convert_value(const Key& key, const YamlNode& node) {
  switch (key.type) {
    case Type::kBool: {
      scalar(key, node, "true or false");
      const std::optional<bool> value = parse_bool(node);
      if (!value) fail(key, node, "true or false");
      return *value;
    }
    case Type::kInt: {
      scalar(key, node, "an integer");
      const std::optional<std::int64_t> value = parse_integer(node);
      if (!value) fail(key, node, "an integer");
      check_range(key, node, static_cast<double>(*value));
      choice(key, node, node.text);
      return *value;
    }
    case Type::kNumber: {
      scalar(key, node, "a number");
      const std::optional<double> value = parse_number(node);
      if (!value) fail(key, node, "a number");
      check_range(key, node, *value);
      return *value;
    }
    case Type::kString:
      return choice(key, node, scalar(key, node, "a string"));
    case Type::kScalar:
      return scalar(key, node, "a single value");
    case Type::kStrings:
      return strings(key, node);
    case Type::kNumbers:
      return numbers(key, node);
    case Type::kTexts:
      return texts(key, node);
    case Type::kSections:
      return sections(key, node);
    case Type::kAny:
      break;
  }
  return std::string("(not checked)");
}

}  // namespace accel::config
