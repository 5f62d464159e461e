#pragma once

#include <string>
#include <vector>

namespace accel::cli {

/// What an option or an argument takes.
enum class Takes {
  kNothing,    ///< It is a flag.
  kWord,       ///< Any text.
  kFile,       ///< A path.
  kDirectory,  ///< The path of a directory.
};

/// An option or an argument of a command, as its help shows it.
struct OptionOutline {
  /// The names of an option with their hyphens, such as "--cpu" and "--use-cpu". An argument has none.
  std::vector<std::string> names;
  Takes takes = Takes::kNothing;
  /// Values to offer, if there are some. Those that end in "=" go on, and what has such a begin and more is
  /// offered once the begin is typed.
  std::vector<std::string> words;
  bool repeats = false;
  std::string help;
};

struct CommandOutline {
  std::string name;
  std::string help;
  std::vector<OptionOutline> options;
  std::vector<OptionOutline> arguments;
};

/// The commands and options of the program. Hidden ones are left out.
struct Outline {
  std::vector<OptionOutline> globals;  ///< They stand before a command or among its options.
  std::vector<CommandOutline> commands;
};

}  // namespace accel::cli
