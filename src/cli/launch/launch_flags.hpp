#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cli/line/command_line.hpp"
#include "core/config/keys/keys.hpp"
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
  /// A flag of a key. One without a metavariable sets true.
  struct Flag {
    const config::Key* key;
    std::string names;
    std::optional<std::string> value;
    bool is_given = false;
  };

  void add_to(Command& command, const config::Key& key);

  std::deque<Flag> flags_;  // Elements stay where they are.
  std::vector<std::string> assignments_;
};

/// The words of `launch` and `check` that say what runs, and by which configuration.
class LaunchWords {
 public:
  /// Adds them. This object must live until the action of the command has run.
  void add_to(Command& command);
  [[nodiscard]] bool has_configuration() const { return !positional_.empty() || !flag_.empty(); }
  /// The path of the configuration; empty if there is none. A program without one gets the file that
  /// `accelerate config` has written, if there is one, which a line of the log says. Throws Error (kUsage) if
  /// two files are named, or if there is neither a configuration nor a program.
  [[nodiscard]] std::string configuration(const std::string& command, bool runs_program) const;

 private:
  std::string positional_;
  std::string flag_;
  bool ignored_ = false;  ///< take_apart() has used the flag.
};

/// Looks up a variable of this process's environment, as accel::Environment.
[[nodiscard]] std::optional<std::string> environment_variable(const std::string& name);

}  // namespace accel::cli
