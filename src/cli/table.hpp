#pragma once

#include <string>
#include <vector>

namespace accel::cli {

/// Rows as lines, the first of which are the titles: columns are padded to their widest cell, and two spaces
/// stand in front of each. A column is aligned to the right if its title is one of `numbers`. Cells are made
/// visible (base/visible.hpp).
[[nodiscard]] std::vector<std::string> table_of(std::vector<std::vector<std::string>> rows,
                                                const std::vector<std::string>& numbers);

}  // namespace accel::cli
