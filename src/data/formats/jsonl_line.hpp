#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace accel {

/// Appends the tokens of a line of a `.jsonl` file to `tokens`. The line is a JSON list of tokens, `[1, 2]`,
/// or an object with such a list, `{"input_ids": [1, 2]}`. A blank line has none.
///
/// The values of other keys have no effect, except those that say that not all tokens count, since a stream
/// of tokens has no place for them: the key `labels`, and a 0 or false below a key whose name contains
/// `mask`. They are an Error of kind kUsage, and so is anything else.
void append_line_tokens(std::string_view line, std::vector<std::int64_t>& tokens);

}  // namespace accel
