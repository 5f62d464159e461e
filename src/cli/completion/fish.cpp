#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion/scripts.hpp"

namespace accel::cli {
namespace {

/// `text` as one word of the shell.
std::string fish_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') result += '\\';
    result += c;
  }
  return result + "'";
}

/// The arguments of `complete` that offer values.
std::string fish_offer_of(Takes takes, const std::vector<std::string>& words) {
  if (!words.empty()) return fmt::format("-x -a '{}'", fmt::join(words, " "));
  if (takes == Takes::kFile) return "-r -F";
  if (takes == Takes::kDirectory) return "-x -a '(__fish_complete_directories)'";
  return "-x";
}

/// `condition` is empty for options of all commands.
void add_fish_options(const std::string& condition, const std::vector<OptionOutline>& options,
                      std::string& script) {
  for (const OptionOutline& option : options) {
    script += "complete -c accel";
    if (!condition.empty()) script += fmt::format(" -n '{}'", condition);
    for (const std::string& name : option.names)
      script += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    if (option.takes != Takes::kNothing) script += ' ' + fish_offer_of(option.takes, option.words);
    script += fmt::format(" -d {}\n", fish_quoted(option.help));
  }
}

// fish offers files unless it is told not to.
constexpr std::string_view kFishBegin = R"(# fish completion for accel, printed by `accel completion fish`.

# Whether the command is this one; without an argument: whether there is none yet.
function __accel_command_is
    set -l words (commandline -opc)
    set -e words[1]
    while set -q words[1]
        switch $words[1]
            case %GLOBALS%
                set -e words[1]
            case '-*'
            case '*'
                test "$words[1]" = "$argv[1]"
                return
        end
        set -e words[1]
    end
    test -z "$argv[1]"
end

complete -c accel -f
complete -c accel -n '__accel_command_is %PROGRAM%; and contains -- -- (commandline -opc)' -F
)";

}  // namespace

std::string fish_completion(const Outline& outline) {
  std::string script =
      filled(filled(std::string(kFishBegin), "%GLOBALS%",
                    fmt::format("{}", fmt::join(names_with_value(outline.globals), " "))),
             "%PROGRAM%", fmt::format("{}", fmt::join(kTakePrograms, "; or __accel_command_is ")));
  add_fish_options("", outline.globals, script);
  for (const CommandOutline& command : outline.commands) {
    script += fmt::format("complete -c accel -n __accel_command_is -a {} -d {}\n", command.name,
                          fish_quoted(command.help));
  }
  for (const CommandOutline& command : outline.commands) {
    const std::string condition = "__accel_command_is " + command.name;
    add_fish_options(condition, command.options, script);
    if (command.arguments.empty()) continue;
    const ArgumentOutline& argument = command.arguments.front();
    script += fmt::format("complete -c accel -n '{}'", condition);
    script += argument.words.empty() ? std::string(" -F\n")
                                     : fmt::format(" -a '{}'\n", fmt::join(argument.words, " "));
  }
  return script;
}

}  // namespace accel::cli
