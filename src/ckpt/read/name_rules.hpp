#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accel::ckpt {

/// A pair FROM, TO. It replaces FROM by TO once in a name: at its start, or else behind the first dot that
/// FROM follows.
using Rename = std::pair<std::string, std::string>;

/// Parses the text "FROM=TO". Throws Error (kUsage) for another text.
[[nodiscard]] Rename parse_rename(const std::string& text);

/// Applies renaming rules and keeps track of which of them have changed a name. Borrows the rules.
class Renames {
 public:
  explicit Renames(const std::vector<Rename>& rules) : rules_(rules), hit_(rules.size(), false) {}

  /// Applies all rules in their order, each to the result of the one before.
  [[nodiscard]] std::string apply(std::string name);

  /// Throws Error (kUsage) for a rule that has changed no name.
  void check_all_hit() const;

 private:
  const std::vector<Rename>& rules_;
  std::vector<bool> hit_;
};

/// Matches names against globs (`*`, `?`, `[...]`) and keeps track of which of them have matched. Borrows the
/// globs.
class Globs {
 public:
  /// `flag` is the option that the globs come from, for the message.
  Globs(std::string_view flag, const std::vector<std::string>& globs)
      : flag_(flag), globs_(globs), hit_(globs.size(), false) {}

  [[nodiscard]] bool any(const std::string& name);

  /// Throws Error (kUsage) for a glob that has matched nothing.
  void check_all_hit() const;

 private:
  std::string_view flag_;
  const std::vector<std::string>& globs_;
  std::vector<bool> hit_;
};

}  // namespace accel::ckpt
