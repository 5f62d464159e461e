#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace accel {

/// The number of characters in a line of the terminal behind a descriptor; nothing if it is not a terminal,
/// or one that does not know it.
[[nodiscard]] std::optional<std::size_t> terminal_width(int fd);

/// Whether lines may be drawn over what was drawn before: the descriptor is a terminal, TERM is neither
/// empty nor `dumb`, and CI is not set, as Cargo and other tools decide. NO_COLOR does not matter, because
/// such lines have no colours.
[[nodiscard]] bool can_redraw(int fd);

/// The number of characters that a line which is drawn over may have. A line that fills the last column may
/// wrap, so that it is one less than the width.
[[nodiscard]] std::size_t redrawn_width(int fd);

/// The control sequence that moves the cursor up by `rows` lines, to their first column, and removes all that
/// stands from there on; empty for 0.
[[nodiscard]] std::string erased_rows(std::size_t rows);

}  // namespace accel
