#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel::cli {

/// Lays out a table as lines. The first row has the titles. Columns are padded to their widest cell and begin
/// with two spaces. A column is aligned to the right if its title is one of `numbers`. Cells are made visible
/// (base/visible.hpp).
///
/// If `width` is set, no line has more characters, as long as the columns can be shortened: cells of the
/// widest columns that are not numbers are cut in the middle. A column keeps 12 characters.
[[nodiscard]] std::vector<std::string> table_of(std::vector<std::vector<std::string>> rows,
                                                const std::vector<std::string>& numbers,
                                                std::optional<std::size_t> width = std::nullopt);

/// The text with three dots in place of its middle, so that it has `most` characters, at least 5; the text
/// itself if it has no more.
[[nodiscard]] std::string cut_in_the_middle(const std::string& text, std::size_t most);

}  // namespace accel::cli
