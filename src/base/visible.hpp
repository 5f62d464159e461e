#pragma once

#include <string>
#include <string_view>

namespace accel {

/// `text` as one line that does nothing to a terminal. Control characters (C0 with newline and tab, DEL, C1)
/// and characters that reorder or break a line (bidirectional controls, U+2028, U+2029) become escapes such
/// as `\n`,
/// `\x1b` and `\u009b`; each byte that is not UTF-8 becomes `\xff`. Everything else stays as it is, so that a
/// text which is already visible does not change.
///
/// Names in messages come from files, which may be anyone's: log and the commands' results pass every line
/// through this function, so that no name can reach the terminal's controls or forge a line.
[[nodiscard]] std::string visible(std::string_view text);

/// The same for a text of several lines: its newlines stay.
[[nodiscard]] std::string visible_lines(std::string_view text);

/// A JSON document as a terminal may have it: DEL, C1 and the characters that reorder a line, which may stand
/// in a JSON string as they are, become `\u` escapes. The value of the document does not change.
[[nodiscard]] std::string visible_json(std::string_view document);

/// `text` as a JSON string can hold it. UTF-8 stays as it is. In any other text each byte that is not UTF-8
/// becomes `\xff` and each backslash is doubled. A text of UTF-8 that has such an `\xff` itself has its
/// backslashes doubled as well; so a result that holds `\x` with two digits is always an escaped text, and
/// different texts have different results.
[[nodiscard]] std::string as_utf8(std::string_view text);

}  // namespace accel
