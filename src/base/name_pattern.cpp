#include "base/name_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.hpp"

namespace accel {
namespace {

using Set = std::bitset<256>;

constexpr std::size_t kMostSteps = 10'000;
constexpr int kDeepest = 100;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

Set only(char c) { return Set().set(static_cast<unsigned char>(c)); }

/// The set of `\d` and the like; `letter` in lower case.
std::optional<Set> class_of(char letter) {
  Set set;
  for (int i = 0; i < 128; ++i) {
    const char c = static_cast<char>(i);
    set[static_cast<std::size_t>(i)] = letter == 'd'   ? is_digit(c)
                                       : letter == 'w' ? is_digit(c) || is_letter(c) || c == '_'
                                                       : letter == 's' && is_space(c);
  }
  if (set.none()) return std::nullopt;
  return set;
}

}  // namespace

class NamePattern::Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Program parse() {
    Program program = alternatives(0);
    if (!at_end()) fail("')' without '('");
    return program;
  }

 private:
  [[nodiscard]] bool at_end() const { return at_ == text_.size(); }
  [[nodiscard]] char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  char next(const char* missing) {
    if (at_end()) fail(missing);
    return text_[at_++];
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::kUsage, fmt::format("the pattern '{}' is wrong at character {}: {}", text_,
                                               std::min(at_, text_.size()) + 1, what))
        .hint("known are . [a-z] [^a-z] \\d \\w \\s ( ) | * + ? {m,n} ^ $, and \\ in front of punctuation");
  }

  void append(Program& program, const Program& more) const {
    if (program.size() + more.size() > kMostSteps) fail("too large, written out");
    program.insert(program.end(), more.begin(), more.end());
  }

  static std::ptrdiff_t length(const Program& program) { return static_cast<std::ptrdiff_t>(program.size()); }

  Program alternatives(int depth) {
    if (depth > kDeepest) fail("too many groups inside each other");
    std::vector<Program> branches = {sequence(depth)};
    while (take('|')) branches.push_back(sequence(depth));
    Program program = std::move(branches.back());
    for (branches.pop_back(); !branches.empty(); branches.pop_back()) {
      const Program rest = std::move(program);
      program = {{Op::kSplit, 1, length(branches.back()) + 2}};
      append(program, branches.back());
      program.push_back({Op::kJump, length(rest) + 1});
      append(program, rest);
    }
    return program;
  }

  Program sequence(int depth) {
    Program program;
    while (!at_end() && peek() != '|' && peek() != ')') append(program, repeated(depth));
    return program;
  }

  Program repeated(int depth) {
    Program one = atom(depth);
    std::size_t least = 1;
    std::optional<std::size_t> most = 1;
    if (take('*')) {
      least = 0;
      most.reset();
    } else if (take('+')) {
      most.reset();
    } else if (take('?')) {
      least = 0;
    } else if (take('{')) {
      least = number();
      most = least;
      if (take(',')) most = peek() == '}' ? std::nullopt : std::optional(number());
      if (!take('}')) fail("'}' is missing");
      if (most && *most < least) fail("the second number of {m,n} is smaller than the first");
    } else {
      return one;
    }
    take('?');  // Lazy: the same whole matches.
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') fail("repeated twice");
    return repeat(one, least, most);
  }

  [[nodiscard]] Program repeat(const Program& one, std::size_t least, std::optional<std::size_t> most) const {
    Program program;
    for (std::size_t i = 0; i < least; ++i) append(program, one);
    Program optional = {{Op::kSplit, 1, length(one) + (most ? 1 : 2)}};
    append(optional, one);
    if (!most) optional.push_back({Op::kJump, -length(one) - 1});
    const std::size_t times = most ? *most - least : 1;
    for (std::size_t i = 0; i < times; ++i) append(program, optional);
    return program;
  }

  std::size_t number() {
    std::size_t value = 0;
    if (!is_digit(peek())) fail("a number is missing");
    while (is_digit(peek())) {
      value = value * 10 + static_cast<std::size_t>(text_[at_++] - '0');
      if (value > kMostSteps) fail("the number is too large");
    }
    return value;
  }

  Program atom(int depth) {
    const char c = next("something is missing");
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return {{Op::kSet, 1, 1, bracket()}};
      case '.':
        return {{Op::kSet, 1, 1, ~only('\n')}};
      case '^':
        return {{Op::kBegin}};
      case '$':
        return {{Op::kEnd}};
      case '\\':
        return {{Op::kSet, 1, 1, escaped()}};
      case '*':
      case '+':
      case '?':
      case '{':
        --at_;
        fail(fmt::format("nothing in front of '{}' to repeat", c));
      default:
        return {{Op::kSet, 1, 1, only(c)}};
    }
  }

  Program group(int depth) {
    if (take('?') && !take(':')) fail("of the groups that begin with '(?' only '(?:' is known");
    Program program = alternatives(depth + 1);
    if (!take(')')) fail("')' is missing");
    return program;
  }

  Set escaped() {
    const char c = next("nothing behind '\\'");
    if (const auto set = class_of(c)) return *set;
    const char lower = static_cast<char>(c | 0x20);
    if (const auto set = is_letter(c) ? class_of(lower) : std::nullopt) return ~*set;
    if (is_letter(c) || is_digit(c)) {
      --at_;
      fail(fmt::format("'\\{}' is not known", c));
    }
    return only(c);
  }

  Set bracket() {
    Set set;
    const bool inverted = take('^');
    for (bool first = true; first || peek() != ']'; first = false) {
      const char c = next("']' is missing");
      Set part = c == '\\' ? escaped() : only(c);
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        const char last = next("']' is missing");
        const Set end = last == '\\' ? escaped() : only(last);
        if (part.count() != 1 || end.count() != 1) fail("a range needs a character at each end");
        part = range(part, end);
      }
      set |= part;
    }
    ++at_;
    return inverted ? ~set : set;
  }

  [[nodiscard]] Set range(const Set& begin, const Set& end) const {
    std::size_t first = 0;
    while (!begin[first]) ++first;
    Set set;
    for (std::size_t i = first; i < set.size(); ++i) {
      set.set(i);
      if (end[i]) return set;
    }
    fail("a range that ends before it begins");
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// The steps that may come next, while a text is read.
class NamePattern::Run {
 public:
  Run(const Program& program, std::string_view text) : program_(program), text_(text) {}

  /// `anywhere`: a match may begin and end in the middle.
  bool run(bool anywhere) {
    begin_position();
    add(0);
    for (at_ = 0; at_ < text_.size(); ++at_) {
      if (anywhere && ended_) return true;
      const std::vector<std::size_t> steps = std::move(waiting_);
      const auto c = static_cast<unsigned char>(text_[at_]);
      begin_position();
      // What is read is behind us from here on.
      ++at_;
      for (const std::size_t step : steps) {
        if (program_[step].set[c]) add(step + 1);
      }
      if (anywhere) add(0);
      --at_;
    }
    return ended_;
  }

 private:
  void begin_position() {
    waiting_.clear();
    seen_.assign(program_.size(), false);
    ended_ = false;
  }

  /// Notes `step` and what can be reached from it without a character.
  void add(std::size_t step) {
    std::vector<std::size_t> open = {step};
    const auto go = [&](std::size_t from, std::ptrdiff_t by) {
      open.push_back(static_cast<std::size_t>(static_cast<std::ptrdiff_t>(from) + by));
    };
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      if (at == program_.size()) {
        ended_ = true;
        continue;
      }
      if (seen_[at]) continue;
      seen_[at] = true;
      const Step& found = program_[at];
      if (found.op == Op::kSet) {
        waiting_.push_back(at);
        continue;
      }
      if (found.op == Op::kBegin && at_ != 0) continue;
      if (found.op == Op::kEnd && at_ != text_.size()) continue;
      go(at, found.a);
      if (found.op == Op::kSplit) go(at, found.b);
    }
  }

  const Program& program_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<std::size_t> waiting_;  // Steps that take the next character.
  std::vector<bool> seen_;
  bool ended_ = false;
};

NamePattern::NamePattern(std::string_view pattern) : program_(Parser(pattern).parse()) {}

bool NamePattern::matches(std::string_view text) const { return Run(program_, text).run(false); }
bool NamePattern::is_found_in(std::string_view text) const { return Run(program_, text).run(true); }

}  // namespace accel
