#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_code.hpp"
#include "base/host/signal_source.hpp"
#include "base/log.hpp"
#include "base/progress.hpp"
#include "cli/line/arguments.hpp"
#include "cli/line/outline.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace accel::cli {

class Results;

/// The values of the flags that every command takes.
struct Globals {
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  log::Color color = log::Color::kAuto;
  std::vector<std::string> program;  ///< The arguments after the "--" of `launch` and `check`.
  Results* out = nullptr;            ///< Only results are written to it.
  SignalSource* signals = nullptr;   ///< Those that a command gets which starts ranks.

  /// How progress is shown: not at all with --quiet.
  [[nodiscard]] Progress::Mode progress() const {
    return quiet ? Progress::Mode::kOff : Progress::Mode::kAuto;
  }
};

/// Runs the chosen command. An Error that it throws becomes the exit code.
using Action = std::function<ExitCode(const Globals&)>;

/// The values that completion offers for options and arguments. CLI11 does not keep them.
using OfferedWords = std::map<const CLI::Option*, std::vector<std::string>>;

/// One command and its flags. Only command_line.cpp includes CLI11, because each file that includes it takes
/// half a minute to compile.
///
/// `names` is the name of a flag ("--force"), or several names with commas. `type` is what the help calls the
/// value: "N", "DIR". Values must live until the action has run.
class Command {
 public:
  enum class Need { kOptional, kRequired };

  Command(CLI::App& app, Action& chosen, OfferedWords& offered)
      : app_(&app), chosen_(&chosen), offered_(&offered) {}

  /// An argument that is a path.
  void positional(const std::string& name, std::string& value, const std::string& help,
                  Need need = Need::kRequired, const std::string& type = "TEXT");
  /// Any number of arguments that are paths, at least one.
  void positionals(const std::string& name, std::vector<std::string>& values, const std::string& help);
  void flag(const std::string& names, bool& value, const std::string& help);
  void text(const std::string& names, const std::string& type, std::string& value, const std::string& help,
            Need need = Need::kOptional);
  /// Adds a flag with a text; `value` is not set if the flag is not given.
  void text(const std::string& names, const std::string& type, std::optional<std::string>& value,
            const std::string& help);
  /// A flag that may be repeated, with one value each time.
  void texts(const std::string& names, const std::string& type, std::vector<std::string>& values,
             const std::string& help);
  /// A whole number from `least` to `most`.
  template <std::integral T>
  void integer(const std::string& names, const std::string& type, T& value, const std::string& help,
               std::int64_t least = 0, std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    integer_to(
        names, type, [&value](std::int64_t given) { value = static_cast<T>(given); }, help, least, most);
  }
  /// The same; `value` is not set if the flag is not given.
  template <std::integral T>
  void integer(const std::string& names, const std::string& type, std::optional<T>& value,
               const std::string& help, std::int64_t least = 0,
               std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    integer_to(
        names, type, [&value](std::int64_t given) { value = static_cast<T>(given); }, help, least, most);
  }
  /// A finite number of at least 0.
  void amount(const std::string& names, const std::string& type, double& value, const std::string& help);
  /// A number of bytes, such as 5GB (parse_size).
  void size(const std::string& names, std::uint64_t& bytes, const std::string& help);
  /// One of some words; an argument instead of a flag if the name has no hyphens.
  template <class T, class Value>
  void choice(const std::string& names, const std::string& type, const std::map<std::string, T>& words,
              Value& value, const std::string& help, Need need = Need::kOptional) {
    std::vector<std::string> known;
    known.reserve(words.size());
    for (const auto& [word, meaning] : words) known.push_back(word);
    choice_to(
        names, type, known, [words, &value](const std::string& word) { value = words.at(word); }, help, need);
  }
  /// Lets completion offer words as values of the flag `name`, which was added before. Other values are valid
  /// too.
  void offer(const std::string& name, std::vector<std::string> words);
  /// Sets the action that runs if the command is chosen.
  void does(Action action);

 private:
  void integer_to(const std::string& names, const std::string& type,
                  const std::function<void(std::int64_t)>& take, const std::string& help, std::int64_t least,
                  std::int64_t most);
  void choice_to(const std::string& names, const std::string& type, const std::vector<std::string>& words,
                 const std::function<void(const std::string&)>& take, const std::string& help, Need need);

  CLI::App* app_;
  Action* chosen_;
  OfferedWords* offered_;
};

/// The command line `accel [flags] COMMAND ...`: global flags, commands, help and errors.
class CommandLine {
 public:
  /// `version` is what --version prints.
  explicit CommandLine(const std::string& version);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
  ~CommandLine();

  /// Begins a group of commands, which add() puts into it. The help lists commands by group.
  void group(const std::string& title) { group_ = title; }
  /// Adds a command. Its help shows `notes` after the options.
  Command add(const std::string& name, const std::string& help, const std::string& notes = "");
  /// Returns false if the arguments ask for help or the version, which is then printed to `out`. Throws Error
  /// (kUsage).
  [[nodiscard]] bool parse(const Arguments& arguments, std::ostream& out);
  /// Wraps help at `width` characters, the width of a terminal.
  void wrap_help(std::optional<std::size_t> width) { width_ = width; }
  /// The help of the program, which lists the commands.
  [[nodiscard]] std::string help() const;
  [[nodiscard]] Outline outline() const;
  [[nodiscard]] bool is_chosen(const std::string& command) const;
  [[nodiscard]] const Action& action() const { return action_; }
  [[nodiscard]] Globals& globals() { return globals_; }

 private:
  void add_global_flags();
  void check_command(const Arguments& arguments) const;

  std::string version_;
  std::string group_;
  std::optional<std::size_t> width_;
  std::unique_ptr<CLI::App> app_;
  Globals globals_;
  Action action_;
  OfferedWords offered_;
};

}  // namespace accel::cli
