#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace accel::cli {

/// A help text whose lines have at most `width` characters, where words are short enough; without a width the
/// text itself. Lines are broken at blanks. What follows a break is indented as the description of an option
/// is, or as its line.
[[nodiscard]] std::string wrapped(const std::string& text, std::optional<std::size_t> width);

}  // namespace accel::cli
