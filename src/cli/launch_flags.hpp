#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.hpp"
#include "core/config/resolve/request.hpp"
#include "core/config/value.hpp"

namespace accel::cli {

/// The flags of `launch`. Each flag sets a value of the configuration. Other commands that resolve a
/// configuration have the same flags.
class LaunchFlags {
 public:
  /// Adds the flags. This object must live until the action of the command has run.
  void add_to(Command& command);
  /// The values that were given, in the order in which they apply: a later one wins. --set comes first, so a
  /// flag with a name of its own wins over it.
  [[nodiscard]] std::vector<config::Settings> settings() const;
  /// What a configuration is resolved from on this machine: `file`, which may be empty, these flags, the
  /// environment and the visible GPUs.
  [[nodiscard]] config::ConfigRequest request(const std::string& file) const;

 private:
  static constexpr std::size_t kValueFlags = 13;

  std::array<std::optional<std::string>, kValueFlags> values_;
  std::vector<std::string> assignments_;
  bool cpu_ = false;
};

/// Looks up a variable of this process's environment, as accel::Environment.
[[nodiscard]] std::optional<std::string> environment_variable(const std::string& name);

}  // namespace accel::cli
