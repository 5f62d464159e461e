#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace accel::cli {

/// Writes the results of a command to stdout. Nothing else goes there. The functions make every line visible
/// (base/visible.hpp): whatever characters a name from a file has, it takes one line and does nothing to a
/// terminal. Each function throws Error if a signal has arrived or if the stream cannot be written.
class Results {
 public:
  explicit Results(std::ostream& out) : out_(out) {}

  /// Writes one line and a newline.
  void line(std::string_view text = {});
  void lines(const std::vector<std::string>& texts);
  /// Writes one document and a newline in valid UTF-8. as_utf8() converts text that is not UTF-8.
  void json(const nlohmann::ordered_json& document);
  void flush();

 private:
  void write(std::string_view text);

  std::ostream& out_;
};

}  // namespace accel::cli
