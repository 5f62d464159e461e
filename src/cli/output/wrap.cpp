#include "cli/output/wrap.hpp"

#include <algorithm>
#include <string_view>

#include "base/text.hpp"
#include "cli/output/table.hpp"

namespace accel::cli {
namespace {

/// Where CLI11 begins the description of an option or a command, if its name leaves room.
constexpr std::size_t kDescription = 30;
/// A terminal that leaves less than this for a description has it under its name.
constexpr std::size_t kLeastDescription = 24;

std::size_t indent_of(const std::string& line, std::size_t width) {
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const bool has_description = begin > 0 && begin < kDescription && line.size() > kDescription &&
                               line[kDescription - 1] == ' ' && line[kDescription] != ' ';
  if (!has_description) return begin;
  return kDescription + kLeastDescription <= width ? kDescription : begin + 2;
}

void add_wrapped(const std::string& line, std::size_t width, std::string& result) {
  const std::string indent(indent_of(line, width), ' ');
  std::string rest = line;
  while (characters_of(rest) > width) {
    // Help is in ASCII, so a byte is a character.
    std::size_t blank = rest.rfind(' ', width);
    if (blank == std::string::npos || blank <= std::max(indent.size(), rest.find_first_not_of(' ')))
      blank = rest.find(' ', width);
    if (blank == std::string::npos) break;
    std::string head = rest.substr(0, blank);
    head.resize(head.find_last_not_of(' ') + 1);
    result += head + '\n';
    rest = indent + std::string(trim(std::string_view(rest).substr(blank)));
  }
  result += rest;
}

}  // namespace

std::string wrapped(const std::string& text, std::optional<std::size_t> width) {
  if (!width) return text;
  std::string result;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    add_wrapped(text.substr(begin, end - begin), *width, result);
    if (end < text.size()) result += '\n';
    begin = end + 1;
  }
  return result;
}

}  // namespace accel::cli
