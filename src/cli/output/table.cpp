#include "cli/output/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/interrupt.hpp"
#include "base/visible.hpp"

namespace accel::cli {

std::vector<std::string> table_of(std::vector<std::vector<std::string>> rows,
                                  const std::vector<std::string>& numbers) {
  std::vector<std::size_t> widths(rows.front().size());
  std::vector<bool> right;
  for (const std::string& title : rows.front())
    right.push_back(std::find(numbers.begin(), numbers.end(), title) != numbers.end());
  for (auto& row : rows) {
    check_interrupted();
    for (std::size_t c = 0; c < row.size(); ++c) {
      row[c] = visible(row[c]);
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  std::vector<std::string> lines;
  lines.reserve(rows.size());
  for (const auto& row : rows) {
    check_interrupted();
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      line +=
          right[c] ? fmt::format("  {:>{}}", row[c], widths[c]) : fmt::format("  {:<{}}", row[c], widths[c]);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace accel::cli
