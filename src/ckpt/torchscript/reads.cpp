#include "ckpt/torchscript/reads.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace accel::ckpt {
namespace {

// A limit on nested brackets. torch writes one pair around a call, and models are about a dozen modules deep;
// crafted text must not take more time than its length justifies.
constexpr int kDeepestBrackets = 8;
constexpr std::size_t kLongestChain = 200;

struct Token {
  enum class Kind { kName, kString, kOther };
  Kind kind = Kind::kOther;
  std::string_view text;  // The text of a string is what is between the quotes.

  [[nodiscard]] bool is(std::string_view other) const { return kind == Kind::kOther && text == other; }
  [[nodiscard]] bool is_name() const { return kind == Kind::kName; }
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    std::size_t end = i + 1;
    if (c == '#') break;  // A comment goes on to the end of the line.
    if (c == '"' || c == '\'') {
      while (end < text.size() && text[end] != c) end += text[end] == '\\' ? 2 : 1;
      end = std::min(end, text.size());
      tokens.push_back({Token::Kind::kString, text.substr(i + 1, end - i - 1)});
      ++end;
    } else if (is_letter(c)) {
      while (end < text.size() && (is_letter(text[end]) || is_digit(text[end]))) ++end;
      tokens.push_back({Token::Kind::kName, text.substr(i, end - i)});
    } else if (is_digit(c)) {
      // A number includes its point and exponent, so that no attribute is seen behind the point.
      while (end < text.size() && (is_letter(text[end]) || is_digit(text[end]) || text[end] == '.')) ++end;
      tokens.push_back({Token::Kind::kOther, text.substr(i, end - i)});
    } else if (c != ' ') {
      if (end < text.size() && text[end] == '=' && (c == '=' || c == '!' || c == '<' || c == '>')) ++end;
      tokens.push_back({Token::Kind::kOther, text.substr(i, end - i)});
    }
    i = end;
  }
  return tokens;
}

// Finds the chains in one line of a method, with the chains that variables stand for.
class LineReader {
 public:
  LineReader(const std::vector<Token>& tokens, const std::map<std::string_view, AttributePath>& variables,
             std::set<AttributePath>& seen, std::vector<AttributePath>& reads)
      : tokens_(tokens), variables_(variables), seen_(seen), reads_(reads) {}

  // Reads all expressions from token `at` on. Gives the path if they are nothing but one chain.
  std::optional<AttributePath> read_all(std::size_t at) {
    std::optional<AttributePath> whole;
    const std::size_t begin = at;
    while (at < tokens_.size()) {
      const bool first = at == begin;
      if (auto chain = read_chain(at)) {
        if (first && at == tokens_.size()) whole = std::move(chain);
      } else {
        ++at;
      }
    }
    return whole;
  }

 private:
  [[nodiscard]] bool is(std::size_t at, std::string_view text) const {
    return at < tokens_.size() && tokens_[at].is(text);
  }
  [[nodiscard]] bool is_name(std::size_t at) const { return at < tokens_.size() && tokens_[at].is_name(); }

  // Reads the chain that begins at token `at` and moves `at` behind it, or gives nothing and leaves `at`.
  std::optional<AttributePath> read_chain(std::size_t& at, int depth = 0) {
    if (depth > kDeepestBrackets) return std::nullopt;
    std::size_t next = at;
    std::optional<AttributePath> path = read_start(next, depth);
    if (!path) return std::nullopt;
    // `.name(` calls a method of the chain's value.
    while (path->size() < kLongestChain && is(next, ".") && is_name(next + 1) && !is(next + 2, "(")) {
      add_step(*path, tokens_[next + 1].text);
      next += 2;
    }
    at = next;
    return path;
  }

  std::optional<AttributePath> read_start(std::size_t& at, int depth) {
    std::size_t next = at;
    std::optional<AttributePath> path;
    if (is(next, "(")) {
      path = read_chain(++next, depth + 1);
      if (!path || !is(next++, ")")) return std::nullopt;
    } else if (is_name(next) && tokens_[next].text == "getattr" && is(next + 1, "(")) {
      next += 2;
      path = read_chain(next, depth + 1);
      if (!path || path->size() >= kLongestChain || !is(next, ",") || next + 1 >= tokens_.size() ||
          tokens_[next + 1].kind != Token::Kind::kString || !is(next + 2, ")")) {
        return std::nullopt;
      }
      add_step(*path, tokens_[next + 1].text);
      next += 3;
    } else if (is_name(next) && !(next > 0 && is(next - 1, ".")) && !is(next + 1, "=")) {
      const auto variable = variables_.find(tokens_[next++].text);
      if (variable == variables_.end()) return std::nullopt;
      path = variable->second;
    } else {
      return std::nullopt;
    }
    at = next;
    return path;
  }

  void add_step(AttributePath& path, std::string_view name) {
    path.emplace_back(name);
    if (seen_.insert(path).second) reads_.push_back(path);
  }

  const std::vector<Token>& tokens_;
  const std::map<std::string_view, AttributePath>& variables_;
  std::set<AttributePath>& seen_;
  std::vector<AttributePath>& reads_;
};

class MethodReader {
 public:
  std::vector<AttributePath> read(std::string_view source) {
    const std::size_t open = source.find('(');
    const std::size_t end = open == std::string_view::npos ? open : source.find(":\n", open);
    const std::vector<Token> head = tokens_of(source.substr(0, end));
    const auto bracket = std::find_if(head.begin(), head.end(), [](const Token& t) { return t.is("("); });
    if (end == std::string_view::npos || bracket == head.end() || bracket + 1 == head.end()) return {};
    variables_.emplace(bracket[1].text, AttributePath{});
    source.remove_prefix(end + 2);
    while (!source.empty()) {
      const std::size_t line_end = std::min(source.find('\n'), source.size());
      read_line(source.substr(0, line_end));
      source.remove_prefix(std::min(line_end + 1, source.size()));
    }
    return std::move(reads_);
  }

 private:
  void read_line(std::string_view line) {
    const std::size_t indent = line.find_first_not_of(' ');
    if (indent == std::string_view::npos) return;
    // Behind a branch or a loop, a variable that it sets has one of several values.
    while (!blocks_.empty() && blocks_.back().indent > indent) {
      for (const std::string_view name : blocks_.back().set) variables_.erase(name);
      blocks_.pop_back();
    }
    if (blocks_.empty() || blocks_.back().indent < indent) blocks_.push_back({indent, {}});

    const std::vector<Token> tokens = tokens_of(line);
    if (tokens.empty()) return;
    LineReader reader(tokens, variables_, seen_, reads_);
    const auto equals = assignment_in(tokens);
    if (!equals) {
      reader.read_all(0);
      if (tokens.front().is_name() && tokens.front().text == "for" && tokens.size() > 1)
        unset(tokens[1].text);
      return;
    }
    std::optional<AttributePath> path = reader.read_all(*equals + 1);
    for (std::size_t i = 0; i < *equals; ++i) {
      if (tokens[i].is_name()) unset(tokens[i].text);
    }
    if (path && tokens.front().is_name()) variables_[tokens.front().text] = std::move(*path);
  }

  // The `=` of a statement `name = ...`, `name : type = ...` or `a, b, = ...`; not that of an argument.
  static std::optional<std::size_t> assignment_in(const std::vector<Token>& tokens) {
    int depth = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].is("(") || tokens[i].is("[") || tokens[i].is("{")) ++depth;
      if (tokens[i].is(")") || tokens[i].is("]") || tokens[i].is("}")) --depth;
      if (depth == 0 && tokens[i].is("=")) return i;
    }
    return std::nullopt;
  }

  void unset(std::string_view name) {
    variables_.erase(name);
    blocks_.back().set.push_back(name);
  }

  struct Block {
    std::size_t indent = 0;
    std::vector<std::string_view> set;  // The variables that the block sets.
  };

  std::map<std::string_view, AttributePath> variables_;
  std::vector<Block> blocks_;
  std::set<AttributePath> seen_;
  std::vector<AttributePath> reads_;
};

}  // namespace

std::vector<AttributePath> attribute_reads(std::string_view source) { return MethodReader().read(source); }

}  // namespace accel::ckpt
