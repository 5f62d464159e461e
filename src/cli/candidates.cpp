#include "cli/candidates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "cli/arguments.hpp"

namespace accel::cli {
namespace {

/// The command line before the word to complete.
struct Before {
  const CommandOutline* command = nullptr;
  std::vector<const OptionOutline*> options;  ///< Those of the command, and those of all commands.
  const OptionOutline* open = nullptr;        ///< The option whose value comes next.
  std::size_t arguments = 0;                  ///< How many arguments of the command are there.
  std::set<std::string> given;                ///< The first names of options that must not come again.

  explicit Before(const Outline& outline) { add_options(outline.globals); }

  void add_options(const std::vector<OptionOutline>& more) {
    for (const OptionOutline& option : more) options.push_back(&option);
  }

  const OptionOutline* find(const std::string& name) const {
    for (const OptionOutline* option : options) {
      if (std::find(option->names.begin(), option->names.end(), name) != option->names.end()) return option;
    }
    return nullptr;
  }

  void take_option(const std::string& word) {
    const OptionOutline* option = find(word.substr(0, word.find('=')));
    if (option == nullptr) return;
    if (!option->repeats) given.insert(option->names.front());
    if (option->takes != Takes::kNothing && word.find('=') == std::string::npos) open = option;
  }
};

/// bash gives a redirection and its file as words.
bool is_redirection(const std::string& word) {
  constexpr auto kAll = std::to_array<std::string_view>({"<", ">", ">>", "2>", "2>>", "&>", ">&", ">|"});
  return std::find(kAll.begin(), kAll.end(), word) != kAll.end();
}

std::vector<std::string> values_of(const OptionOutline& option, const std::string& prefix) {
  if (option.takes == Takes::kFile && option.words.empty()) return {":file"};
  if (option.takes == Takes::kDirectory) return {":directory"};
  std::vector<std::string> values;
  for (const std::string& word : option.words) values.push_back(prefix + word);
  return values;
}

}  // namespace

std::vector<std::string> candidates(const Outline& outline, std::vector<std::string> words) {
  static const OptionOutline kText{{}, Takes::kWord, {}, false, {}};
  if (words.empty() || words.back() == "=") words.emplace_back();
  Before before(outline);
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string word = with_hyphens(words[i]);
    const bool is_last = i + 2 == words.size();
    if (word == ":") {
      // bash makes three words of RANK:N.
      if (is_last) return {};
      ++i;
    } else if (is_redirection(word)) {
      if (is_last) return {":file"};
      ++i;
    } else if (word == "=") {
      if (before.open == nullptr) before.open = &kText;
    } else if (before.open != nullptr) {
      before.open = nullptr;
    } else if (word == "--" && before.command != nullptr && takes_program(before.command->name)) {
      return {fmt::format(":program {}", i + 2)};
    } else if (word.starts_with('-')) {
      before.take_option(word);
    } else if (before.command != nullptr) {
      ++before.arguments;
    } else if (word == "help") {
      // A command follows, as at the beginning.
    } else {
      for (const CommandOutline& command : outline.commands) {
        if (command.name == word) before.command = &command;
      }
      if (before.command == nullptr) return {};
      before.add_options(before.command->options);
    }
  }

  const std::string current = with_hyphens(words.back());
  if (before.open != nullptr) return values_of(*before.open, "");
  std::vector<std::string> lines;
  if (const auto equals = current.find('='); current.starts_with('-') && equals != std::string::npos) {
    const OptionOutline* option = before.find(current.substr(0, equals));
    if (option != nullptr) lines = values_of(*option, words.back().substr(0, equals + 1));
  } else if (current.starts_with('-')) {
    for (const OptionOutline* option : before.options) {
      if (!before.given.insert(option->names.front()).second) continue;  // Every command has its own --help.
      for (const std::string& name : option->names) lines.push_back(name + '\t' + option->help);
    }
  } else if (before.command == nullptr) {
    for (const CommandOutline& command : outline.commands)
      lines.push_back(command.name + '\t' + command.help);
  } else if (before.arguments < before.command->arguments.size()) {
    lines = values_of(before.command->arguments[before.arguments], "");
  }
  return lines;
}

}  // namespace accel::cli
