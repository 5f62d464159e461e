#pragma once

#include <concepts>
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
#include "base/log.hpp"
#include "cli/arguments.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace accel::cli {

class Results;

/// What the flags in front of every command set.
struct Globals {
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  log::Color color = log::Color::kAuto;
  std::vector<std::string> program;  ///< What stood behind "--" after `launch`.
  Results* out = nullptr;            ///< Results, and nothing else, go here.
};

/// What the chosen command does; an Error becomes its exit code.
using Action = std::function<ExitCode(const Globals&)>;

/// One command, as its file describes it. CLI11 stands behind this and in no other file: each that includes
/// it takes half a minute to compile.
///
/// `names` are "--force", or several with commas; `type` is what help calls the value: "N", "DIR". Values
/// must live until the action has run.
class Command {
 public:
  enum class Need { kOptional, kRequired };

  Command(CLI::App& app, Action& chosen) : app_(&app), chosen_(&chosen) {}

  void positional(const std::string& name, std::string& value, const std::string& help,
                  Need need = Need::kRequired, const std::string& type = "TEXT");
  void flag(const std::string& names, bool& value, const std::string& help);
  void text(const std::string& names, const std::string& type, std::string& value, const std::string& help,
            Need need = Need::kOptional);
  /// Empty if it is not given.
  void text(const std::string& names, const std::string& type, std::optional<std::string>& value,
            const std::string& help);
  /// May be repeated, with one value each time.
  void texts(const std::string& names, const std::string& type, std::vector<std::string>& values,
             const std::string& help);
  /// A whole number from `least` to `most`.
  template <std::integral T>
  void integer(const std::string& names, const std::string& type, T& value, const std::string& help,
               std::int64_t least = 0, std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    integer_to(
        names, type, [&value](std::int64_t given) { value = static_cast<T>(given); }, help, least, most);
  }
  /// A finite number of at least 0.
  void amount(const std::string& names, const std::string& type, double& value, const std::string& help);
  /// A number of bytes, such as 5GB (parse_size).
  void size(const std::string& names, std::uint64_t& bytes, const std::string& help);
  /// One of some words.
  template <class T, class Value>
  void choice(const std::string& names, const std::string& type, const std::map<std::string, T>& words,
              Value& value, const std::string& help, Need need = Need::kOptional) {
    std::vector<std::string> known;
    known.reserve(words.size());
    for (const auto& [word, meaning] : words) known.push_back(word);
    choice_to(
        names, type, known, [words, &value](const std::string& word) { value = words.at(word); }, help, need);
  }
  /// What is done when the command is chosen.
  void does(Action action);

 private:
  void integer_to(const std::string& names, const std::string& type,
                  const std::function<void(std::int64_t)>& take, const std::string& help, std::int64_t least,
                  std::int64_t most);
  void choice_to(const std::string& names, const std::string& type, const std::vector<std::string>& words,
                 const std::function<void(const std::string&)>& take, const std::string& help, Need need);

  CLI::App* app_;
  Action* chosen_;
};

/// `accel [flags] COMMAND ...`: its flags, its commands, its help, and what is said about a wrong line.
class CommandLine {
 public:
  /// `version` is what --version prints.
  explicit CommandLine(const std::string& version);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
  ~CommandLine();

  /// `notes` stands in the command's help behind its options.
  Command add(const std::string& name, const std::string& help, const std::string& notes = "");
  /// False if help or the version was asked for, and has been printed. Throws Error (kUsage).
  [[nodiscard]] bool parse(const Arguments& arguments, std::ostream& out);
  [[nodiscard]] bool is_chosen(const std::string& command) const;
  [[nodiscard]] const Action& action() const { return action_; }
  [[nodiscard]] Globals& globals() { return globals_; }

 private:
  void add_global_flags();
  void check_command(const Arguments& arguments) const;

  std::string version_;
  std::unique_ptr<CLI::App> app_;
  Globals globals_;
  Action action_;
};

}  // namespace accel::cli
