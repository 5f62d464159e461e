#include "data/formats/jsonl_line.hpp"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "base/files/json_text.hpp"
#include "data/files/file_tokens.hpp"
#include "data/formats/sample_source.hpp"

namespace accel {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_line(std::string message) {
  throw Error(ErrorKind::kUsage, std::move(message))
      .hint(
          "a line of format: jsonl is a list of token ids, [1, 2], or an object with one, {\"input_ids\": "
          "[1, 2]}; `accel-export --tokenize` makes tokens of chats, prompts and texts for format: "
          "documents");
}

/// A text that is being parsed, which says how far the parser is.
class WatchedText : public InterruptibleText {
 public:
  WatchedText(const char* at, const char*& read) : InterruptibleText(at), read_(&read) {}

  WatchedText& operator++() {
    InterruptibleText::operator++();
    *read_ = &**this;
    return *this;
  }

 private:
  const char** read_;
};

/// Takes the tokens of a line while it is parsed, so that no document is built of it.
class LineTokens final : public json::json_sax_t {
 public:
  LineTokens(std::string_view line, std::vector<std::int64_t>& tokens, std::vector<LinePlace>* places,
             bool is_cut)
      : begin_of_line_(line.data()), read_(line.data()), tokens_(tokens), places_(places), is_cut_(is_cut) {}

  /// Where the parser writes how far it has read.
  [[nodiscard]] const char*& read() { return read_; }

  bool null() override { return other("null"); }
  bool boolean(bool value) override {
    if (!value) require_no_mask();
    return other(value ? "true" : "false");
  }
  bool number_integer(number_integer_t number) override {
    if (number < 0) return other(fmt::to_string(number));
    return number_unsigned(static_cast<number_unsigned_t>(number));
  }
  bool number_unsigned(number_unsigned_t number) override {
    if (number == 0) require_no_mask();
    if (!is_in_tokens() || number > kLargestToken) return other(fmt::to_string(number));
    tokens_.push_back(static_cast<std::int64_t>(number));
    note_place(1);  // The parser has read one byte behind the number.
    return true;
  }
  bool number_float(number_float_t number, const string_t& text) override {
    if (number == 0) require_no_mask();
    return other(text);
  }
  bool string(string_t& /*text*/) override { return other("a string"); }
  bool binary(binary_t& /*bytes*/) override { return other("binary data"); }
  bool start_object(std::size_t /*size*/) override {
    if (depth_ > 0) return other("an object") && enter();
    is_object_ = true;
    return enter();
  }
  bool start_array(std::size_t /*size*/) override {
    const bool begins_tokens = depth_ == (is_object_ ? 1 : 0) && (!is_object_ || key_ == kTokensField);
    has_tokens_ = has_tokens_ || begins_tokens;
    if (begins_tokens) note_place(0);
    return (begins_tokens || other("a list")) && enter();
  }
  bool end_object() override { return --depth_ >= 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool key(string_t& name) override {
    if (depth_ != 1 || !is_object_) return true;
    if (name == kLabelsField)
      refuse_line("it has 'labels', but the labels of this format are the next tokens");
    if (name == kTokensField && has_tokens_) refuse_line("it has 'input_ids' twice");
    key_ = name;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*last*/,
                   const nlohmann::detail::exception& /*error*/) override {
    if (is_cut_) return false;
    refuse_line(fmt::format("it is not JSON at its byte {}", position));
  }

  void require_list() const {
    if (!has_tokens_) refuse_line("it is an object without 'input_ids'");
  }

 private:
  void note_place(std::size_t read_ahead) {
    const std::size_t offset = static_cast<std::size_t>(read_ - begin_of_line_) - read_ahead;
    if (places_ == nullptr || offset - noted_ < kPlaceBytes) return;
    places_->push_back({offset, tokens_.size() - begin_});
    noted_ = offset;
  }
  [[nodiscard]] bool is_in_tokens() const {
    return is_object_ ? depth_ == 2 && key_ == kTokensField : depth_ == 1;
  }
  /// Takes a value that is not a token: any value is right below another key.
  [[nodiscard]] bool other(const std::string& found) const {
    if (is_in_tokens()) {
      refuse_line(fmt::format("{} at position {} of its list is not a token, which is from 0 to {}", found,
                              tokens_.size() - begin_, kLargestToken));
    }
    if (depth_ == 0) refuse_line(fmt::format("it is {}, not a list or an object", found));
    if (depth_ == 1 && key_ == kTokensField) refuse_line(fmt::format("'input_ids' is {}, not a list", found));
    return true;
  }
  void require_no_mask() const {
    if (!is_object_ || key_.find("mask") == std::string::npos) return;
    refuse_line(fmt::format("'{}' leaves tokens out, but this format takes all", key_));
  }
  bool enter() {
    ++depth_;
    return true;
  }

  const char* begin_of_line_;
  const char* read_;
  std::vector<std::int64_t>& tokens_;
  std::vector<LinePlace>* places_;
  bool is_cut_;
  std::size_t noted_ = 0;  ///< Where the last place is.
  std::size_t begin_ = tokens_.size();
  std::int64_t depth_ = 0;
  bool is_object_ = false;   ///< The line is an object, not a list.
  bool has_tokens_ = false;  ///< The list of tokens has begun.
  std::string key_;          ///< The key of the object that is being read.
};

}  // namespace

void append_line_tokens(std::string_view line, std::vector<std::int64_t>& tokens,
                        std::vector<LinePlace>* places, bool is_cut) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
  // The parser takes a zero byte for the end.
  if (line.find('\0') != std::string_view::npos) refuse_line("it has a zero byte");
  LineTokens taken(line, tokens, places, is_cut);
  json::sax_parse(WatchedText(line.data(), taken.read()),
                  WatchedText(line.data() + line.size(), taken.read()), &taken);
  taken.require_list();
}

void append_list_tokens(std::string_view text, std::vector<std::int64_t>& tokens) {
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end && *at != ']';) {
    if (std::string_view(", \t\r").find(*at) != std::string_view::npos) {
      ++at;
      continue;
    }
    std::int64_t token = 0;
    const auto [behind, error] = std::from_chars(at, end, token);
    if (error != std::errc() || token < 0 || token > kLargestToken)
      refuse_line("its list has no token where one was");
    tokens.push_back(token);
    at = behind;
  }
}

}  // namespace accel
