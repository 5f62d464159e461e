#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion/scripts.hpp"

namespace accel::cli {
namespace {

/// `text` with a backslash before each of the characters `special`.
std::string with_backslashes(std::string_view text, std::string_view special) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

/// `text` as one word of the shell.
std::string zsh_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

/// The action of _arguments that offers values.
std::string zsh_action_of(Takes takes, const std::vector<std::string>& words) {
  if (!words.empty() && words.front().ends_with('='))
    return fmt::format("{{compadd -S \"\" -- {}}}", fmt::join(words, " "));
  if (!words.empty()) return fmt::format("({})", fmt::join(words, " "));
  if (takes == Takes::kFile) return "_files";
  if (takes == Takes::kDirectory) return "_files -/";
  return " ";
}

/// What _arguments takes for an option: one specification for each of its names. A name that was given
/// excludes the others.
std::vector<std::string> specifications_of(const OptionOutline& option) {
  std::vector<std::string> all;
  for (const std::string& name : option.names) {
    std::string text = option.repeats ? "*" : fmt::format("({})", fmt::join(option.names, " "));
    text += name;
    const bool takes_value = option.takes != Takes::kNothing;
    if (takes_value && name.starts_with("--")) text += '=';
    text += fmt::format("[{}]", with_backslashes(option.help, "\\[]"));
    if (takes_value)
      text += fmt::format(":{}:{}", with_backslashes(option.type, "\\:"),
                          zsh_action_of(option.takes, option.words));
    all.push_back(zsh_quoted(text));
  }
  return all;
}

void add_zsh_options(const std::vector<OptionOutline>& options, std::string_view indent,
                     std::string& script) {
  for (const OptionOutline& option : options) {
    for (const std::string& specification : specifications_of(option))
      script += fmt::format("{}{}\n", indent, specification);
  }
}

void add_zsh_command(const CommandOutline& command, std::string& script) {
  script += fmt::format("        {})\n            specifications+=(\n", command.name);
  add_zsh_options(command.options, "                ", script);
  for (const ArgumentOutline& argument : command.arguments) {
    const std::string text = fmt::format(":{}:{}", with_backslashes(argument.name, "\\:"),
                                         zsh_action_of(argument.takes, argument.words));
    script += fmt::format("                {}\n", zsh_quoted(text));
  }
  script += "            )\n            ;;\n";
}

constexpr std::string_view kAfterGlobals = R"(    )
    commands=(
)";

// After the second form of _arguments, `words` begins with the command.
constexpr std::string_view kCommands = R"(    )
    _arguments -C $specifications '1: :->command' '*:: :->argument' && return
    if [[ $state == command ]]; then
        _describe -t commands command commands
        return
    fi
    dashes=${words[(i)--]}
    if [[ $words[1] == %PROGRAM% ]] && ((dashes < CURRENT)); then
        shift $dashes words
        ((CURRENT -= dashes))
        _normal
        return
    fi
    case $words[1] in
)";

constexpr std::string_view kZshEnd = R"(    esac
    _arguments $specifications
}
if [[ $funcstack[1] == _accel ]]; then
    _accel "$@"
else
    compdef _accel accel
fi
)";

}  // namespace

std::string zsh_completion(const Outline& outline) {
  std::string script = R"(#compdef accel
# zsh completion for accel, printed by `accel completion zsh`.
_accel() {
    local curcontext=$curcontext state state_descr line
    local -a specifications commands
    local -i dashes
    typeset -A opt_args
    specifications=(
)";
  add_zsh_options(outline.globals, "        ", script);
  script += kAfterGlobals;
  for (const CommandOutline& command : outline.commands)
    script +=
        fmt::format("        {}\n", zsh_quoted(command.name + ":" + with_backslashes(command.help, "\\:")));
  script += filled(std::string(kCommands), "%PROGRAM%", fmt::format("({})", fmt::join(kTakePrograms, "|")));
  for (const CommandOutline& command : outline.commands) add_zsh_command(command, script);
  return script + std::string(kZshEnd);
}

}  // namespace accel::cli
