#include "cli/completion/scripts.hpp"

#include <map>
#include <memory>

#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/output/results.hpp"

namespace accel::cli {
namespace {

using Writer = std::string (*)(const Outline&);

}  // namespace

std::vector<std::string> names_with_value(const std::vector<OptionOutline>& options) {
  std::vector<std::string> names;
  for (const OptionOutline& option : options) {
    if (option.takes != Takes::kNothing) names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::string filled(std::string text, std::string_view mark, std::string_view value) {
  return text.replace(text.find(mark), mark.size(), value);
}

void add_completion(CommandLine& line) {
  Command command = line.add("completion", "Print a script with which a shell completes commands and options",
                             "\nbash: source <(accel completion bash). zsh: the same, after compinit.\n"
                             "fish: accel completion fish | source. Packages install the scripts.\n");
  const std::map<std::string, Writer> writers = {
      {"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}};
  auto writer = std::make_shared<Writer>(nullptr);
  command.choice("SHELL", "bash|zsh|fish", writers, *writer, "The shell", Command::Need::kRequired);
  command.does([writer, &line](const Globals& globals) {
    globals.out->lines(split(trim((*writer)(line.outline())), '\n'));
    return ExitCode::kSuccess;
  });
}

}  // namespace accel::cli
