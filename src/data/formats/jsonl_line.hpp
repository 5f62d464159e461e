#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace accel {

/// A place within the list of tokens of a line, behind a whole number of tokens.
struct LinePlace {
  std::size_t offset = 0;  ///< Its first byte in the line.
  std::size_t tokens = 0;  ///< The tokens of the line before it.
};

/// The distance in bytes between two places that append_line_tokens() notes.
inline constexpr std::size_t kPlaceBytes = std::size_t{64} << 10;

/// Appends the tokens of a line of a `.jsonl` file to `tokens`. The line is a JSON list of tokens, `[1, 2]`,
/// or an object with such a list, `{"input_ids": [1, 2]}`. A blank line has none.
///
/// The values of other keys have no effect, except those that say that not all tokens count, since a stream
/// of tokens has no place for them: the key `labels`, and a 0 or false below a key whose name contains
/// `mask`. They are an Error of kind kUsage, and so is anything else.
///
/// Adds to `places`, if it is not null, a place about every kPlaceBytes of a longer line. With `is_cut` the
/// line may end at such a place.
void append_line_tokens(std::string_view line, std::vector<std::int64_t>& tokens,
                        std::vector<LinePlace>* places = nullptr, bool is_cut = false);

/// Appends the tokens from a LinePlace on, where `text` begins, up to the end of their list or of the text.
/// Throws Error (kUsage) for what cannot stand there.
void append_list_tokens(std::string_view text, std::vector<std::int64_t>& tokens);

}  // namespace accel
