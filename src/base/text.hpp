#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

/// "1.5 GB", "12 kB", "17 B": decimal units, as file sizes in this field are given.
std::string format_bytes(std::uint64_t bytes);
/// The bytes in "5GB", "1.5 gb", "64MiB" or "100": decimal units unless there is an i; a fraction of a byte
/// is dropped. Nothing if it is no size, or over 2^63.
std::optional<std::uint64_t> parse_size(std::string_view text);
/// "1m 05s", "12.3 s", "45 ms".
std::string format_duration(double seconds);
/// The Levenshtein distance of two strings, in edits.
std::size_t edit_distance(std::string_view a, std::string_view b);
/// The candidate nearest to `word` if it is near enough to be a likely typo of it.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);
/// The parts of `text` between `separator`s; an empty text gives no part.
std::vector<std::string> split(std::string_view text, char separator);
/// What a JSON parser says, without its own tag: "[json.exception.parse_error.101] " in front.
std::string_view without_json_tag(std::string_view what);
/// `text` without blanks at its ends.
std::string_view trim(std::string_view text);

}  // namespace accel
