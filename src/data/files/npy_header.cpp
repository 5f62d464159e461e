#include "data/files/npy_header.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace accel {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::kUsage, "the .npy header " + what).hint("numpy.save writes a header that fits");
}

/// Reads the dict of a header from its text.
class DictReader {
 public:
  explicit DictReader(std::string_view text) : text_(text) {}

  NpyHeader read() {
    std::set<std::string> found;
    require('{');
    while (!take('}')) {
      const std::string key = quoted();
      if (!found.insert(key).second) refuse(fmt::format("has the key '{}' twice", key));
      require(':');
      read_value(key);
      if (take(',')) continue;
      require('}');
      break;
    }
    skip_space();
    if (at_ != text_.size()) refuse(fmt::format("has '{}' behind its dict", text_.substr(at_, kShown)));
    for (const char* key : {"descr", "fortran_order", "shape"}) {
      if (!found.contains(key)) refuse(fmt::format("has no key '{}'", key));
    }
    return std::move(header_);
  }

 private:
  static constexpr std::size_t kShown = 40;

  void read_value(const std::string& key) {
    if (key == "descr") {
      header_.descr = peek() == '[' ? list() : quoted();
    } else if (key == "fortran_order") {
      header_.is_fortran_order = boolean();
    } else if (key == "shape") {
      read_shape();
    } else {
      refuse(fmt::format("has the key '{}', which the format does not have", key));
    }
  }

  void read_shape() {
    require('(');
    while (!take(')')) {
      header_.shape.push_back(number());
      if (take(',')) continue;
      if (header_.shape.size() == 1) fail("a comma, as behind the one size of a tuple,");
      require(')');
      break;
    }
  }

  std::uint64_t number() {
    skip_space();
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("a size");
    at_ = static_cast<std::size_t>(end - text_.data());
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2 wrote so that an integer is long.
    return value;
  }

  bool boolean() {
    skip_space();
    for (const auto& [word, value] : {std::pair{std::string_view("True"), true}, {"False", false}}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return value;
    }
    fail("True or False");
  }

  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail("a string");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("a string that ends");
    const std::string value(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return value;
  }

  /// The list of a structured dtype, as it stands there.
  std::string list() {
    const std::size_t begin = at_;
    int depth = 0;
    do {
      if (at_ == text_.size()) fail("a list that ends");
      depth += text_[at_] == '[' ? 1 : text_[at_] == ']' ? -1 : 0;
      ++at_;
    } while (depth > 0);
    return std::string(text_.substr(begin, at_ - begin));
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void require(char c) {
    if (!take(c)) fail(fmt::format("'{}'", c));
  }
  [[noreturn]] void fail(std::string_view expected) {
    skip_space();
    const std::string_view rest = text_.substr(at_, kShown);
    refuse(fmt::format("is not a dict as Python writes it: {} is expected, found {}", expected,
                       rest.empty() ? "its end" : fmt::format("'{}'", rest)));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  NpyHeader header_;
};

}  // namespace

std::string NpyHeader::shape_text() const {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

NpyHeader read_npy_header(std::span<const std::byte> file) {
  const auto byte_at = [&](std::size_t i) { return std::to_integer<std::size_t>(file[i]); };
  if (file.size() < 12) refuse("is truncated");
  if (byte_at(6) < 1 || byte_at(6) > 3)
    refuse(fmt::format("has version {}, supported are 1 to 3", byte_at(6)));
  const bool is_wide = byte_at(6) >= 2;
  std::size_t length = byte_at(8) + (byte_at(9) << 8);
  if (is_wide) length += (byte_at(10) << 16) + (byte_at(11) << 24);
  const std::size_t start = is_wide ? 12 : 10;
  if (length > file.size() - start) refuse("is truncated");
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + start, length);
  NpyHeader header = DictReader(text).read();
  header.bytes = start + length;
  return header;
}

}  // namespace accel
