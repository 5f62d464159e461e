#include "cli/line/arguments.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.hpp"

namespace accel::cli {
namespace {

constexpr const char* kPython = "python3";

bool is_configuration(const std::string& word) {
  const std::string suffix = std::filesystem::path(word).extension();
  return suffix == ".yaml" || suffix == ".yml" || suffix == ".json";
}

bool is_executable(const std::string& word) {
  std::error_code error;
  return std::filesystem::is_regular_file(word, error) && ::access(word.c_str(), X_OK) == 0;
}

bool is_program(const std::string& word) {
  return word.ends_with(".py") || (!is_configuration(word) && is_executable(word));
}

/// Whether an option of the command, or a global one, takes the word behind it.
bool takes_value(const std::string& option, std::string_view command, const Outline& outline) {
  const auto is_it = [&](const OptionOutline& known) {
    return known.takes != Takes::kNothing &&
           std::find(known.names.begin(), known.names.end(), option) != known.names.end();
  };
  const auto of = std::find_if(outline.commands.begin(), outline.commands.end(),
                               [&](const CommandOutline& known) { return known.name == command; });
  return std::any_of(outline.globals.begin(), outline.globals.end(), is_it) ||
         (of != outline.commands.end() && std::any_of(of->options.begin(), of->options.end(), is_it));
}

/// The program that `words` are, run by Python if it is a script.
std::vector<std::string> program_of(std::vector<std::string> words, bool without_python) {
  const bool is_script = !words.empty() && words.front().ends_with(".py") && !is_executable(words.front());
  if (is_script && !without_python) words.insert(words.begin(), kPython);
  return words;
}

}  // namespace

std::string with_hyphens(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  const auto name_end =
      argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
  std::replace(argument.begin() + 2, name_end, '_', '-');
  return argument;
}

void require_script(const std::vector<std::string>& program) {
  if (program.size() < 2 || program[0] != kPython || !program[1].ends_with(".py")) return;
  std::error_code error;
  if (std::filesystem::exists(program[1], error)) return;
  throw Error(ErrorKind::kUsage, fmt::format("the script '{}' does not exist", program[1]))
      .hint("relative paths are relative to the current directory");
}

bool takes_program(std::string_view command) { return command == "launch" || command == "check"; }

std::vector<std::string> with_help_flag(std::vector<std::string> arguments) {
  if (arguments.empty() || arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  // Behind "--" it would not be a flag.
  arguments.insert(arguments.begin() + (arguments.empty() || arguments.front().starts_with('-') ? 0 : 1),
                   "--help");
  return arguments;
}

Arguments take_apart(const std::vector<std::string>& arguments, const Outline& outline) {
  Arguments result;
  bool has_configuration = false;
  bool without_python = false;
  bool value_follows = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto at = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    const std::string word = with_hyphens(*at);
    const bool is_value = std::exchange(value_follows, false);
    const bool has_program = result.command && takes_program(*result.command);
    if (!is_value && *at == "--") {
      if (has_program) {
        result.program = program_of({at + 1, arguments.end()}, without_python);
      } else {
        result.own.insert(result.own.end(), at, arguments.end());
      }
      return result;
    }
    if (is_value || word.starts_with("-")) {
      if (has_program && !is_value && (word == "-m" || word == "--module")) {
        result.program = {kPython, "-m"};
        result.program.insert(result.program.end(), at + 1, arguments.end());
        return result;
      }
      if (has_program && !is_value && word == "--no-python") {
        without_python = true;
        continue;
      }
      value_follows = !is_value && takes_value(word, result.command.value_or(""), outline);
      has_configuration = has_configuration || word.substr(0, word.find('=')) == "--config-file";
    } else if (!result.command) {
      result.command = *at;
    } else if (has_program) {
      if (is_program(*at) || (has_configuration && !is_configuration(*at))) {
        result.program = program_of({at, arguments.end()}, without_python);
        // A name without a slash would be searched along PATH, but this file is meant.
        std::string& program = result.program.front();
        if (program == *at && program.find('/') == std::string::npos && is_executable(program))
          program.insert(0, "./");
        return result;
      }
      has_configuration = true;
    }
    result.own.push_back(is_value ? *at : word);
  }
  return result;
}

}  // namespace accel::cli
