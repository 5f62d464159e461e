#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace re2 {
class RE2;
}

namespace accel {

/// A regular expression in the notation of Python's `re`, for names of modules and the like.
///
/// RE2 matches it, in a time that is linear in the text, so look-around and back references are refused.
/// Characters are bytes, and `\d \w \s` are classes of ASCII; `\s` has no vertical tab, and `(?i)` ignores
/// the case of ASCII letters only where names are ASCII. Refused because RE2 and Python read them
/// differently: octal escapes, `\p`, `\C`, `\Q`, `\z`, `{,n}`, and `[:alpha:]` inside `[ ]`. RE2 repeats at
/// most 1000 times.
class NamePattern {
 public:
  /// Throws Error (kUsage), which names the pattern and what is wrong with it, for one that is not a regular
  /// expression, uses what is refused, or is too large.
  explicit NamePattern(std::string_view pattern);

  /// Whether the pattern matches the whole text, as in Python's re.fullmatch.
  [[nodiscard]] bool matches(std::string_view text) const;
  /// Whether the pattern matches a part of the text, as in re.search. `$` is the end of the text alone.
  [[nodiscard]] bool is_found_in(std::string_view text) const;
  /// `text` with `replacement` in place of each match, as in re.sub; `\1` in it is the first group of the
  /// match.
  [[nodiscard]] std::string replaced_in(std::string_view text, const std::string& replacement) const;
  /// Throws Error (kUsage) for a replacement that names a group that the pattern does not have.
  void check_replacement(const std::string& replacement) const;
  /// The pattern as it was given.
  [[nodiscard]] const std::string& text() const;

 private:
  std::shared_ptr<const re2::RE2> program_;
};

}  // namespace accel
