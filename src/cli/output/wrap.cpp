#include "cli/output/wrap.hpp"

#include <algorithm>
#include <string_view>

#include "base/terminal.hpp"

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

}  // namespace

std::string wrapped(const std::string& text, std::optional<std::size_t> width) {
  if (!width) return text;
  std::string result;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    result += wrapped_at(*width, line, indent_of(line, *width));
    if (end < text.size()) result += '\n';
    begin = end + 1;
  }
  return result;
}

}  // namespace accel::cli
