#pragma once

#include <string>
#include <vector>

namespace accel::cli {

/// Lays out a table as lines. The first row has the titles. Columns are padded to their widest cell and begin
/// with two spaces. A column is aligned to the right if its title is one of `numbers`. Cells are made visible
/// (base/visible.hpp).
[[nodiscard]] std::vector<std::string> table_of(std::vector<std::vector<std::string>> rows,
                                                const std::vector<std::string>& numbers);

}  // namespace accel::cli
