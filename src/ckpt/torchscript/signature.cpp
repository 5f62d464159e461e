#include "ckpt/torchscript/signature.hpp"

#include <algorithm>
#include <cstddef>

#include "base/text.hpp"

namespace accel::ckpt {
namespace {

/// The position of the first of `ends` in `text` that is outside brackets and strings, or the end of `text`.
std::size_t find_outside(std::string_view text, std::string_view ends) {
  int depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (depth == 0 && ends.find(c) != std::string_view::npos) return at;
    if (c == '"' || c == '\'') {
      for (++at; at < text.size() && text[at] != c;) at += text[at] == '\\' ? 2 : 1;
    } else if (c == '(' || c == '[' || c == '{') {
      ++depth;
    } else if (c == ')' || c == ']' || c == '}') {
      --depth;
    }
  }
  return text.size();
}

ScriptArgument argument_of(std::string_view text) {
  const std::size_t colon = find_outside(text, ":=");
  const std::string_view rest = text.substr(std::min(colon, text.size()));
  const std::size_t equals = find_outside(rest, "=");
  const std::string_view type = rest.starts_with(':') ? rest.substr(1, equals - 1) : std::string_view();
  return {std::string(trim(text.substr(0, colon))), std::string(trim(type)), equals < rest.size()};
}

}  // namespace

std::vector<ScriptArgument> arguments_of(std::string_view source) {
  std::vector<ScriptArgument> arguments;
  const std::size_t open = source.find('(');
  if (open == std::string_view::npos) return arguments;
  std::string_view rest = source.substr(open + 1);
  for (bool is_self = true; !rest.empty(); is_self = false) {
    const std::size_t end = find_outside(rest, ",)");
    const std::string_view text = trim(rest.substr(0, end));
    if (!is_self && !text.empty()) arguments.push_back(argument_of(text));
    if (end >= rest.size() || rest[end] == ')') break;
    rest.remove_prefix(end + 1);
  }
  return arguments;
}

std::string returned_type(std::string_view source) {
  const std::size_t open = source.find('(');
  if (open == std::string_view::npos) return {};
  std::string_view rest = source.substr(open + 1);
  const std::size_t close = find_outside(rest, ")");
  if (close >= rest.size()) return {};
  rest = trim(rest.substr(close + 1));
  if (!rest.starts_with("->")) return {};
  rest.remove_prefix(2);
  return std::string(trim(rest.substr(0, find_outside(rest, ":"))));
}

}  // namespace accel::ckpt
