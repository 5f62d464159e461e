#pragma once

#include <bitset>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

/// A regular expression in Python's notation, for names of modules and the like.
///
/// It has what such patterns need: characters, `.`, `[a-z]`, `[^a-z]`, `\d \w \s` and their opposites, `\` in
/// front of punctuation, groups `( )` and `(?: )`, `|`, `* + ? {m} {m,} {m,n}` (lazy or not is the same to a
/// whole match), `^` and `$`. Without look-around, back references, named groups and flags, all of which are
/// refused by name. Characters are bytes, classes are those of ASCII.
///
/// All branches are followed at once, so the time to match is the product of both lengths at most, whatever
/// the pattern: std::regex may take exponential time, and all of the stack.
class NamePattern {
 public:
  /// Throws Error (kUsage) that says what is wrong and where, for a pattern that is no regular expression,
  /// uses what is not there, or is larger than 10,000 steps written out.
  explicit NamePattern(std::string_view pattern);

  /// As Python's re.fullmatch: whether the pattern matches the whole text.
  [[nodiscard]] bool matches(std::string_view text) const;
  /// As Python's re.search: whether it matches some part of it.
  [[nodiscard]] bool is_found_in(std::string_view text) const;

 private:
  enum class Op { kSet, kSplit, kJump, kBegin, kEnd };
  /// kSet takes one character of `set`; the others take none and go on at `a`, kSplit also at `b`, which are
  /// relative. Behind the last step is the end.
  struct Step {
    Op op = Op::kJump;
    std::ptrdiff_t a = 1;
    std::ptrdiff_t b = 1;
    std::bitset<256> set = {};
  };
  using Program = std::vector<Step>;
  class Parser;
  class Run;

  Program program_;
};

}  // namespace accel
