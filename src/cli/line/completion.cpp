#include <map>
#include <memory>
#include <string_view>

#include "base/text.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"

namespace accel::cli {
namespace {

// The scripts ask `accel __complete` (cli/line/candidates.hpp). They need nothing but the shell and the
// program, not even the package bash-completion.

// Readline may split words at "=" (COMP_WORDBREAKS) or not.
constexpr std::string_view kBash = R"sh(# bash completion for accel, printed by `accel completion bash`.
_accel() {
    local cur=${COMP_WORDS[COMP_CWORD]} prefix= paths= line
    COMPREPLY=()
    if [[ $cur == = ]]; then cur=; fi
    while read -r line; do
        case $line in
            ":program $COMP_CWORD") paths=command ;;
            :program* | :file) paths=file ;;
            :directory) paths=directory ;;
            "$cur"*) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done < <("${COMP_WORDS[0]/#\~/$HOME}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ -n $paths ]]; then
        if [[ $cur == --*=* ]]; then prefix=${cur%%=*}=; fi
        mapfile -t COMPREPLY < <(compgen -A "$paths" -P "$prefix" -- "${cur#"$prefix"}")
        compopt -o filenames 2>/dev/null
    elif [[ ${COMPREPLY[0]-} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _accel accel
)sh";

constexpr std::string_view kZsh = R"sh(#compdef accel
# zsh completion for accel, printed by `accel completion zsh`.
_accel() {
    local line
    local -a found suffix
    for line in ${(f)"$(${(Q)~words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"}; do
        case $line in
            :program*)
                shift ${line#* } words
                ((CURRENT -= ${line#* }))
                _normal
                return
                ;;
            :file) compset -P 1 '--*='; _files; return ;;
            :directory) compset -P 1 '--*='; _files -/; return ;;
            *=) suffix=(-S '') ;|
            *) found+=("${${line//:/\\:}/$'\t'/:}") ;;
        esac
    done
    _describe -t values value found $suffix
}
if [[ $funcstack[1] == _accel ]]; then
    _accel "$@"
else
    compdef _accel accel
fi
)sh";

// Without -f, fish offers files beside the candidates.
constexpr std::string_view kFish = R"sh(# fish completion for accel, printed by `accel completion fish`.
function __accel_candidates
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (string replace -r '^~/' $HOME/ $words[1]) __complete $words[2..] $current
    set found ($found 2>/dev/null)
    switch "$found[1]"
        case ':program*'
            set -l first (math 1 + (string split ' ' $found[1])[2])
            set -l line (string join -- ' ' (string escape -- $words[$first..]) $current)
            complete -C "$line"
        case :file
            __fish_complete_path $current
        case :directory
            __fish_complete_directories $current
        case '*'
            string join \n -- $found
    end
end
complete -c accel -f -a '(__accel_candidates)'
)sh";

}  // namespace

void add_completion(CommandLine& line) {
  Command command = line.add("completion", "Print a script with which a shell completes commands and options",
                             "\nbash: source <(accel completion bash). zsh: the same, after compinit.\n"
                             "fish: accel completion fish | source. Packages install the scripts.\n");
  const std::map<std::string, std::string_view> scripts = {{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}};
  const auto script = std::make_shared<std::string_view>();
  command.choice("SHELL", "bash|zsh|fish", scripts, *script, "The shell", Command::Need::kRequired);
  command.does([script](const Globals& globals) {
    globals.out->lines(split(trim(*script), '\n'));
    return ExitCode::kSuccess;
  });
}

}  // namespace accel::cli
