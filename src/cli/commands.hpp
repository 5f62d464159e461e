#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "base/exit_code.hpp"

namespace CLI {
class App;
}

namespace accel::cli {

/// What the flags in front of every command set.
struct Globals {
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  std::vector<std::string> program;  ///< What stood behind "--" after `launch`.
  std::ostream* out = nullptr;       ///< Results, and nothing else, go here.
};

/// What the chosen command does; main runs it after parsing and maps an Error to the exit code.
using Action = std::function<ExitCode()>;

/// Each adds one command to `app`. When the command is chosen, `action` is set; `globals` is read when it
/// runs.
void add_launch(CLI::App& app, const Globals& globals, Action& action);
void add_save(CLI::App& app, const Globals& globals, Action& action);
void add_load(CLI::App& app, const Globals& globals, Action& action);
void add_merge_weights(CLI::App& app, const Globals& globals, Action& action);
void add_inspect(CLI::App& app, const Globals& globals, Action& action);

}  // namespace accel::cli
