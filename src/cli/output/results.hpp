#pragma once

#include <cstddef>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel::cli {

/// Whether a verdict is good news. On a terminal each has a colour.
enum class Tone { kGood, kWarning, kBad };

/// Writes the results of a command to stdout. Nothing else goes there. The functions make every line visible
/// (base/visible.hpp): whatever characters a name from a file has, it takes one line and does nothing to a
/// terminal. Each function throws Error if a signal has arrived or if the stream cannot be written.
class Results {
 public:
  /// `width` is the number of characters in a line of the terminal that shows `out`, if one does.
  explicit Results(std::ostream& out, std::optional<std::size_t> width = std::nullopt)
      : out_(out), width_(width) {}

  /// Colours verdicts from now on.
  void use_colors() { has_colors_ = true; }
  [[nodiscard]] std::optional<std::size_t> width() const { return width_; }

  /// Writes one line and a newline.
  void line(std::string_view text = {});
  void lines(const std::vector<std::string>& texts);
  /// Writes one line, in which the verdict is coloured if there are colours.
  void verdict(std::string_view before, std::string_view verdict, Tone tone, std::string_view after = {});
  /// Writes a table (table_of) that is no wider than the terminal.
  void table(std::vector<std::vector<std::string>> rows, const std::vector<std::string>& numbers);
  /// Writes one document and a newline in valid UTF-8. as_utf8() converts text that is not UTF-8.
  void json(const nlohmann::ordered_json& document);
  void flush();

 private:
  void write(std::string_view text);

  std::ostream& out_;
  std::optional<std::size_t> width_;
  bool has_colors_ = false;
};

}  // namespace accel::cli
