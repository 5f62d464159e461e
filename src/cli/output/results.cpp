#include "cli/output/results.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/visible.hpp"
#include "cli/output/table.hpp"

namespace accel::cli {
namespace {

using Json = nlohmann::ordered_json;

// Writes a document as dump(2) does, but piece by piece: a large document takes seconds, and a signal may
// arrive in that time.
class JsonWriter {
 public:
  explicit JsonWriter(std::function<void(std::string_view)> write) : write_(std::move(write)) {}

  void write(const Json& document) {
    add(document, 0);
    write_(text_ + '\n');
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

  void add(const Json& value, std::size_t depth) {
    if (value.is_structured() && !value.empty()) {
      text_ += value.is_array() ? '[' : '{';
      const char* separator = "\n";
      for (const auto& [key, item] : value.items()) {
        text_ += separator;
        text_.append(2 * (depth + 1), ' ');
        if (value.is_object()) text_ += quoted(key) + ": ";
        add(item, depth + 1);
        separator = ",\n";
      }
      text_ += '\n';
      text_.append(2 * depth, ' ');
      text_ += value.is_array() ? ']' : '}';
    } else {
      text_ += value.is_string() ? quoted(value.get_ref<const std::string&>()) : value.dump();
    }
    if (text_.size() < kPieceBytes) return;
    write_(text_);
    text_.clear();
  }

  static std::string quoted(std::string_view text) { return visible_json(Json(as_utf8(text)).dump()); }

  std::function<void(std::string_view)> write_;
  std::string text_;
};

}  // namespace

void Results::line(std::string_view text) { write(visible(text) + '\n'); }

void Results::lines(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) line(text);
}

void Results::verdict(std::string_view before, std::string_view verdict, Tone tone, std::string_view after) {
  const char* color = tone == Tone::kGood      ? "\x1b[1;32m"
                      : tone == Tone::kWarning ? "\x1b[1;33m"
                                               : "\x1b[1;31m";
  write(fmt::format("{}{}{}{}{}\n", visible(before), has_colors_ ? color : "", visible(verdict),
                    has_colors_ ? "\x1b[m" : "", visible(after)));
}

void Results::table(std::vector<std::vector<std::string>> rows, const std::vector<std::string>& numbers) {
  lines(table_of(std::move(rows), numbers, width_));
}

void Results::json(const Json& document) {
  JsonWriter([this](std::string_view text) { write(text); }).write(document);
}

void Results::flush() {
  out_.flush();
  write({});
}

void Results::write(std::string_view text) {
  check_interrupted();
  out_ << text;
  if (out_) return;
  check_interrupted();
  throw Error(ErrorKind::kFailure, "cannot write to stdout");
}

}  // namespace accel::cli
