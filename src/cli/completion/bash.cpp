#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion/scripts.hpp"

namespace accel::cli {
namespace {

/// All names of options.
std::vector<std::string> all_names_of(const std::vector<OptionOutline>& options) {
  std::vector<std::string> names;
  for (const OptionOutline& option : options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

/// A pattern of `case` for one option of a command; `command` is "*" for an option of all commands.
std::string pattern_of(const std::string& command, const OptionOutline& option) {
  std::vector<std::string> patterns;
  for (const std::string& name : option.names) {
    patterns.push_back(command == "*" ? fmt::format("*' {}'", name) : fmt::format("'{} {}'", command, name));
  }
  return fmt::format("{}", fmt::join(patterns, " | "));
}

/// The shell's statement that offers the values of an option or an argument.
std::string bash_offer_of(Takes takes, const std::vector<std::string>& words) {
  if (!words.empty()) return fmt::format("words='{}'", fmt::join(words, " "));
  if (takes == Takes::kFile) return "paths=file";
  if (takes == Takes::kDirectory) return "paths=directory";
  return "return";
}

void add_bash_values(const std::string& command, const std::vector<OptionOutline>& options,
                     std::string& script) {
  for (const OptionOutline& option : options) {
    if (option.takes == Takes::kNothing) continue;
    script += fmt::format("        {}) {} ;;\n", pattern_of(command, option),
                          bash_offer_of(option.takes, option.words));
  }
}

// The first word that is not an option is the command. `=` is a word of its own, because COMP_WORDBREAKS has
// it.
constexpr std::string_view kBashBegin = R"(# bash completion for accel, printed by `accel completion bash`.
_accel() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local command= prefix= words= paths= i
    COMPREPLY=()
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = ]] && ((COMP_CWORD > 2)); then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $cur == --*=* ]]; then
        prev=${cur%%=*}
        prefix=$prev=
        cur=${cur#*=}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
            %GLOBALS%)
                if [[ ${COMP_WORDS[i + 1]} == = ]]; then ((i += 2)); else ((i += 1)); fi
                ;;
            -* | =) ;;
            *)
                command=${COMP_WORDS[i]}
                break
                ;;
        esac
    done
    if [[ $command == %PROGRAM% ]]; then
        for ((; i < COMP_CWORD; i++)); do
            [[ ${COMP_WORDS[i]} == -- ]] || continue
            paths=file
            if ((i + 1 == COMP_CWORD)); then paths=command; fi
            mapfile -t COMPREPLY < <(compgen -A "$paths" -- "$cur")
            compopt -o filenames 2>/dev/null
            return
        done
    fi
    case "$command $prev" in
)";

constexpr std::string_view kBashEnd = R"(            esac
            ;;
    esac
    if [[ -n $paths ]]; then
        mapfile -t COMPREPLY < <(compgen -A "$paths" -- "$cur")
        compopt -o filenames 2>/dev/null
    else
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
        if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace 2>/dev/null; fi
    fi
    COMPREPLY=("${COMPREPLY[@]/#/$prefix}")
}
complete -F _accel accel
)";

}  // namespace

std::string bash_completion(const Outline& outline) {
  std::string script = filled(filled(std::string(kBashBegin), "%GLOBALS%",
                                     fmt::format("{}", fmt::join(names_with_value(outline.globals), " | "))),
                              "%PROGRAM%", fmt::format("@({})", fmt::join(kTakePrograms, "|")));
  add_bash_values("*", outline.globals, script);
  for (const CommandOutline& command : outline.commands)
    add_bash_values(command.name, command.options, script);

  const std::string globals = fmt::format("{}", fmt::join(all_names_of(outline.globals), " "));
  script += "        *)\n            case \"$command $cur\" in\n";
  script += fmt::format("                ' -'*) words='{}' ;;\n", globals);
  for (const CommandOutline& command : outline.commands) {
    script += fmt::format("                '{} -'*) words='{} {}' ;;\n", command.name,
                          fmt::join(all_names_of(command.options), " "), globals);
  }
  std::vector<std::string> commands;
  for (const CommandOutline& command : outline.commands) commands.push_back(command.name);
  script += fmt::format("                ' '*) words='{}' ;;\n", fmt::join(commands, " "));
  for (const CommandOutline& command : outline.commands) {
    if (command.arguments.empty()) continue;
    const ArgumentOutline& argument = command.arguments.front();
    script += fmt::format("                '{} '*) {} ;;\n", command.name,
                          bash_offer_of(argument.takes, argument.words));
  }
  return script + std::string(kBashEnd);
}

}  // namespace accel::cli
