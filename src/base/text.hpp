#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

/// "1.5 GB", "12 kB", "17 B", in decimal units.
std::string format_bytes(std::uint64_t bytes);
/// The bytes in "5GB", "1.5 gb", "64MiB" or "100". Units are decimal unless there is an i; a fraction of a
/// byte is dropped. Absent if the text is not a size, or is 2^63 or more.
std::optional<std::uint64_t> parse_size(std::string_view text);
/// The decimal number that is the whole text, such as "12" or "-1"; absent if it is not a T.
template <std::integral T = int>
std::optional<T> parse_int(std::string_view text) {
  T number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}
/// Whether the text consists of decimal digits, of which there is at least one.
bool is_digits(std::string_view text);
/// `text` with the letters of ASCII in lower case, in every locale.
std::string lower_case(std::string_view text);
/// "1m 05s", "12.3 s", "45 ms".
std::string format_duration(double seconds);
/// A time as this machine's clock shows it: "2026-11-23 09:17:46".
[[nodiscard]] std::string format_time(std::time_t time);
/// The Levenshtein distance of two strings, in edits.
std::size_t edit_distance(std::string_view a, std::string_view b);
/// The candidate nearest to `word`; absent if none is near enough for `word` to be a typo of it.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);
/// The parts of `text` between separators. An empty text has none.
std::vector<std::string> split(std::string_view text, char separator);
/// Whether `word` is one of the words of `list`, which are separated by single spaces.
bool has_word(std::string_view list, std::string_view word);
/// The message of a JSON parser without its tag, such as "[json.exception.parse_error.101] ".
std::string_view without_json_tag(std::string_view what);
/// `text` as one word of a command line that a user may copy into a shell: in single quotes if it has
/// characters that mean something to a shell.
std::string shell_word(std::string_view text);
/// `text` without blanks at its ends.
std::string_view trim(std::string_view text);

}  // namespace accel
