#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace accel {

struct Utf8Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  ///< The number of bytes; 0 if the text does not begin with UTF-8.
};

/// The character at the start of `text`, which is not empty. Lone surrogates are accepted.
[[nodiscard]] Utf8Character utf8_character(std::string_view text);

/// `text` as one line that does nothing to a terminal. Control characters (C0 with newline and tab, DEL, C1)
/// and characters that reorder or break a line (bidirectional controls, U+2028, U+2029) become escapes such
/// as `\n`, `\x1b` and `\u009b`; each byte that is not UTF-8 becomes `\xff`. All other characters stay, so a
/// text that is already visible does not change.
///
/// Names in messages come from files that anyone may have written. The log and the results of commands pass
/// every line through this function, so that no name can control the terminal or forge a line.
[[nodiscard]] std::string visible(std::string_view text);

/// Does what visible() does to each line of `text`. Newlines stay.
[[nodiscard]] std::string visible_lines(std::string_view text);

/// A JSON document that does nothing to a terminal. DEL, C1 and the characters that reorder a line, which
/// JSON allows in a string, become `\u` escapes. The value of the document does not change.
[[nodiscard]] std::string visible_json(std::string_view document);

/// `text` as a JSON string can hold it. UTF-8 stays as it is. In any other text each byte that is not UTF-8
/// becomes `\xff`, and each backslash is doubled. Backslashes are also doubled in a UTF-8 text that holds
/// such an `\xff`. So a result with `\x` and two digits is always escaped, and different texts have different
/// results.
[[nodiscard]] std::string as_utf8(std::string_view text);

}  // namespace accel
