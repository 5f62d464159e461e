#include "cli/arguments.hpp"

#include <algorithm>

namespace accel::cli {

std::string with_hyphens(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  const auto name_end =
      argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
  std::replace(argument.begin() + 2, name_end, '_', '-');
  return argument;
}

bool takes_program(std::string_view command) { return command == "launch" || command == "check"; }

Arguments take_apart(const std::vector<std::string>& arguments) {
  Arguments result;
  bool value_follows = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      const auto rest = arguments.begin() + static_cast<std::ptrdiff_t>(i);
      if (result.command && takes_program(*result.command)) {
        result.program.assign(rest + 1, arguments.end());
      } else {
        result.own.insert(result.own.end(), rest, arguments.end());
      }
      return result;
    }
    if (!result.command && !value_follows && !argument.starts_with('-')) result.command = argument;
    // --color is the only flag before a command that takes a value.
    value_follows = argument == "--color";
    result.own.push_back(with_hyphens(argument));
  }
  return result;
}

}  // namespace accel::cli
