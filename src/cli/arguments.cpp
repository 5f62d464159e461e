#include "cli/arguments.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/text.hpp"

namespace accel::cli {
namespace {

std::string with_hyphens(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  const auto name_end =
      argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
  std::replace(argument.begin() + 2, name_end, '_', '-');
  return argument;
}

}  // namespace

Arguments take_apart(const std::vector<std::string>& arguments) {
  Arguments result;
  bool value_follows = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      const auto rest = arguments.begin() + static_cast<std::ptrdiff_t>(i);
      if (result.command == "launch") {
        result.program.assign(rest + 1, arguments.end());
      } else {
        result.own.insert(result.own.end(), rest, arguments.end());
      }
      return result;
    }
    if (!result.command && !value_follows && !argument.starts_with('-')) result.command = argument;
    // The only flag in front of a command that takes a value.
    value_follows = argument == "--color";
    result.own.push_back(with_hyphens(argument));
  }
  return result;
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  text = trim(text);
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || std::signbit(number)) return std::nullopt;
  std::string unit(trim(text.substr(static_cast<std::size_t>(end - text.data()))));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (unit.ends_with('b')) unit.pop_back();
  const double base = unit.ends_with('i') ? 1024 : 1000;
  if (unit.size() > 1 && unit.ends_with('i')) unit.pop_back();
  static constexpr std::string_view kPrefixes = "kmgtp";
  if (unit.size() > 1 || (!unit.empty() && kPrefixes.find(unit[0]) == std::string_view::npos))
    return std::nullopt;
  if (!unit.empty()) number *= std::pow(base, static_cast<double>(kPrefixes.find(unit[0]) + 1));
  if (!(number < 0x1p63)) return std::nullopt;
  return static_cast<std::uint64_t>(number);
}

}  // namespace accel::cli
