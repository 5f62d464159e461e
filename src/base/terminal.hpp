#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace accel {

/// The number of characters in a line of the terminal behind a descriptor; nothing if the descriptor is not a
/// terminal, or if the terminal does not say the number.
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

/// Whether the environment allows colours on a terminal: `NO_COLOR` is empty or not set, and TERM is not
/// `dumb`.
[[nodiscard]] bool allows_colors();

/// The number of characters of a text in UTF-8.
[[nodiscard]] std::size_t characters_of(std::string_view text);

/// `text` with line breaks at blanks, so that none of its lines has more than `width` characters, where words
/// are short enough. What follows a break in the first line is indented by `indent` blanks, and in a later
/// line by two more than the line itself. `column` characters stand already before the first line.
[[nodiscard]] std::string wrapped_at(std::size_t width, std::string_view text, std::size_t indent,
                                     std::size_t column = 0);

/// The same at the width of a terminal; `text` itself if the descriptor is not one, or a very narrow one.
/// `margin` characters will stand before every line.
[[nodiscard]] std::string wrapped_on(int fd, std::string_view text, std::size_t indent,
                                     std::size_t column = 0, std::size_t margin = 0);

}  // namespace accel
