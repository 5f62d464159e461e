#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.hpp"
#include "core/config/settings/settings.hpp"
#include "core/config/value.hpp"

namespace accel::cli {

/// The flags of `launch`, each of which sets a value of the configuration; for other commands that resolve
/// one.
class LaunchFlags {
 public:
  /// This must live until the command's action has run.
  void add_to(Command& command);
  /// What was given; a later one wins, so a flag with a name of its own wins over --set.
  [[nodiscard]] std::vector<core::Settings> settings() const;

 private:
  static constexpr std::size_t kValueFlags = 11;

  std::array<std::optional<std::string>, kValueFlags> values_;
  std::vector<std::string> assignments_;
  bool cpu_ = false;
};

/// Looks up a variable of this process, as accel::Environment.
[[nodiscard]] std::optional<std::string> environment_variable(const std::string& name);

}  // namespace accel::cli
