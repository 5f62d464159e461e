#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace accel::cli {

/// Where the results of a command go, and nothing else: stdout. All of it goes out through these functions,
/// which make every line visible (base/visible.hpp): whatever a name in a file holds, it takes one line and
/// does nothing to a terminal. Each function throws Error if a signal has come or if the stream cannot be
/// written.
class Results {
 public:
  explicit Results(std::ostream& out) : out_(out) {}

  /// One line; its newline is added.
  void line(std::string_view text = {});
  void lines(const std::vector<std::string>& texts);
  /// One document and a newline, in valid UTF-8. Text that is not UTF-8 is written as as_utf8() makes it.
  void json(const nlohmann::ordered_json& document);
  void flush();

 private:
  void write(std::string_view text);

  std::ostream& out_;
};

}  // namespace accel::cli
