#include "cli/line/candidates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "cli/line/arguments.hpp"

namespace accel::cli {
namespace {

/// The command line before the word to complete.
struct Before {
  const CommandOutline* command = nullptr;
  std::vector<const OptionOutline*> options;  ///< Those of the command, and those of all commands.
  const OptionOutline* open = nullptr;        ///< The option whose value comes next.
  const OptionOutline* closed = nullptr;      ///< The option whose value has just come, and that value.
  std::string value;
  std::size_t arguments = 0;    ///< How many arguments of the command are there.
  std::set<std::string> given;  ///< The first names of options that must not come again.

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

/// The values of an option with `prefix` before each. `typed` is what is there of the value: of a word such
/// as "KEY=VALUE" only the begin "KEY=" is offered before it is typed, and only the whole word afterwards.
std::vector<std::string> values_of(const OptionOutline& option, const std::string& prefix,
                                   const std::string& typed) {
  if (option.takes == Takes::kFile && option.words.empty()) return {":file"};
  if (option.takes == Takes::kDirectory) return {":directory"};
  const auto equals = typed.find('=');
  const std::string begin = equals == std::string::npos ? "" : typed.substr(0, equals + 1);
  std::vector<std::string> values;
  for (const std::string& word : option.words) {
    const auto end = word.find('=');
    const bool goes_on = end != std::string::npos && end + 1 < word.size();
    if (goes_on == !begin.empty() && word.starts_with(begin)) values.push_back(prefix + word);
  }
  return values;
}

/// The values behind "KEY=" in the words of an option.
std::vector<std::string> values_behind(const OptionOutline& option, const std::string& begin) {
  std::vector<std::string> values = values_of(option, "", begin);
  for (std::string& value : values) value.erase(0, begin.size());
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
      // bash makes three words of KEY=VALUE, too.
      if (is_last && before.closed != nullptr) return values_behind(*before.closed, before.value + '=');
      if (before.open == nullptr) before.open = &kText;
    } else if (before.open != nullptr) {
      before.closed = std::exchange(before.open, nullptr);
      before.value = words[i];
      continue;
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
    before.closed = nullptr;
  }

  const std::string current = with_hyphens(words.back());
  if (before.open != nullptr) return values_of(*before.open, "", words.back());
  std::vector<std::string> lines;
  if (const auto equals = current.find('='); current.starts_with('-') && equals != std::string::npos) {
    const OptionOutline* option = before.find(current.substr(0, equals));
    if (option != nullptr)
      lines = values_of(*option, words.back().substr(0, equals + 1), words.back().substr(equals + 1));
  } else if (current.starts_with('-')) {
    for (const OptionOutline* option : before.options) {
      if (!before.given.insert(option->names.front()).second) continue;  // Every command has its own --help.
      for (const std::string& name : option->names) lines.push_back(name + '\t' + option->help);
    }
  } else if (before.command == nullptr) {
    for (const CommandOutline& command : outline.commands)
      lines.push_back(command.name + '\t' + command.help);
  } else if (before.arguments < before.command->arguments.size()) {
    lines = values_of(before.command->arguments[before.arguments], "", words.back());
  }
  return lines;
}

}  // namespace accel::cli
