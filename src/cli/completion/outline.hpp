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

/// An option of a command, as its help shows it.
struct OptionOutline {
  std::vector<std::string> names;  ///< With their hyphens: "--cpu", "--use-cpu".
  Takes takes = Takes::kNothing;
  std::string type;                ///< What the help calls the value; empty for a flag.
  std::vector<std::string> words;  ///< Values to offer, if there are some. Those that end in "=" go on.
  bool repeats = false;
  std::string help;
};

/// An argument of a command that is not an option.
struct ArgumentOutline {
  std::string name;
  Takes takes = Takes::kFile;
  std::vector<std::string> words;  ///< All values that it may have; empty for a path.
};

struct CommandOutline {
  std::string name;
  std::string help;
  std::vector<OptionOutline> options;
  std::vector<ArgumentOutline> arguments;
};

/// The commands and options of the program. Hidden ones are left out.
struct Outline {
  std::vector<OptionOutline> globals;  ///< They stand before a command or among its options.
  std::vector<CommandOutline> commands;
};

}  // namespace accel::cli
