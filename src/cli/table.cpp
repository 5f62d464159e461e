#include "cli/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace accel::cli {

std::string table_of(const std::vector<std::vector<std::string>>& rows,
                     const std::vector<std::string>& numbers) {
  std::vector<std::size_t> widths(rows.front().size());
  std::vector<bool> right;
  for (const std::string& title : rows.front())
    right.push_back(std::find(numbers.begin(), numbers.end(), title) != numbers.end());
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      line +=
          right[c] ? fmt::format("  {:>{}}", row[c], widths[c]) : fmt::format("  {:<{}}", row[c], widths[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace accel::cli
