#include "cli/output/table.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/interrupt.hpp"
#include "base/terminal.hpp"
#include "base/visible.hpp"

namespace accel::cli {

namespace {

/// The characters that a column keeps.
constexpr std::size_t kLeast = 12;

/// Makes the widest of the columns that may be cut narrower, one character at a time, until a line has at
/// most `width` characters.
void narrow(std::vector<std::size_t>& widths, const std::vector<bool>& is_number, std::size_t width) {
  std::size_t line = 0;
  for (const std::size_t column : widths) line += 2 + column;
  for (; line > width; --line) {
    std::size_t* widest = nullptr;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      if (!is_number[c] && widths[c] > kLeast && (widest == nullptr || widths[c] > *widest))
        widest = &widths[c];
    }
    if (widest == nullptr) return;
    --*widest;
  }
}

}  // namespace

std::string cut_in_the_middle(const std::string& text, std::size_t most) {
  constexpr std::string_view kDots = "...";
  if (characters_of(text) <= most) return text;
  std::vector<std::size_t> starts;  // Where each character begins.
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (characters_of(std::string_view(text).substr(at, 1)) == 1) starts.push_back(at);
  }
  const std::size_t kept = most - kDots.size();
  const std::size_t behind = kept / 2;
  const std::size_t tail = behind == 0 ? text.size() : starts[starts.size() - behind];
  return text.substr(0, starts[kept - behind]).append(kDots).append(text, tail);
}

std::vector<std::string> table_of(std::vector<std::vector<std::string>> rows,
                                  const std::vector<std::string>& numbers, std::optional<std::size_t> width) {
  std::vector<std::size_t> widths(rows.front().size());
  std::vector<bool> right;
  for (const std::string& title : rows.front())
    right.push_back(std::find(numbers.begin(), numbers.end(), title) != numbers.end());
  for (auto& row : rows) {
    check_interrupted();
    for (std::size_t c = 0; c < row.size(); ++c) {
      row[c] = visible(row[c]);
      widths[c] = std::max(widths[c], characters_of(row[c]));
    }
  }
  if (width) narrow(widths, right, *width);
  std::vector<std::string> lines;
  lines.reserve(rows.size());
  for (const auto& row : rows) {
    check_interrupted();
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string cell = cut_in_the_middle(row[c], widths[c]);
      const std::string padding(widths[c] - characters_of(cell), ' ');
      line += "  " + (right[c] ? padding + cell : cell + padding);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace accel::cli
