#include "cli/line/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <ostream>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/output/wrap.hpp"
#include "core/config/keys/keys.hpp"

namespace accel::cli {
namespace {

constexpr std::string_view kExitCodes =
    "\nExit codes: 0 success, 1 failure, 2 usage or configuration, 3 verify or diff found something,\n"
    "4 checkpoint missing or incomplete, 5 checkpoint corrupt, 6 a worker failed, 7 stopped for preemption\n"
    "after saving; ended by a signal: 129 SIGHUP, 130 SIGINT, 138 SIGUSR1, 140 SIGUSR2, 143 SIGTERM.";

constexpr std::string_view kSeeExitCodes = "\nExit codes: accel help lists them.";

/// The long names of the flags of `app`.
std::vector<std::string> long_flags(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

[[noreturn]] void fail_usage(const CLI::App& app, const CLI::ParseError& failure) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::string help =
      chosen.empty() ? "accel --help" : fmt::format("accel {} --help", chosen.front()->get_name());
  const auto* extras = dynamic_cast<const CLI::ExtrasError*>(&failure);
  const std::vector<std::string> left = app.remaining(true);
  if (dynamic_cast<const CLI::RequiredError*>(&failure) != nullptr && chosen.empty()) {
    throw Error(ErrorKind::kUsage, "a command is needed").hint("accel help lists the commands");
  }
  if (extras == nullptr || left.empty()) {
    throw Error(ErrorKind::kUsage, failure.what()).hint(fmt::format("see {}", help));
  }
  const std::string& word = left.front();
  if (!word.starts_with("-")) {
    throw Error(ErrorKind::kUsage, fmt::format("unexpected argument '{}'", word))
        .hint(fmt::format("see {}", help));
  }
  std::vector<std::string> known = long_flags(app);
  for (const CLI::App* command : chosen) {
    const std::vector<std::string> more = long_flags(*command);
    known.insert(known.end(), more.begin(), more.end());
  }
  const std::string flag = word.substr(0, word.find('='));
  const auto near = nearest(flag, known);
  const bool has_settings = std::find(known.begin(), known.end(), "--set") != known.end();
  const auto key = has_settings ? config::key_named_last(flag) : std::nullopt;
  throw Error(ErrorKind::kUsage, fmt::format("unknown flag '{}'", flag))
      .hint(near  ? fmt::format("did you mean '{}'?", *near)
            : key ? fmt::format("a key of the configuration is set by '--set {}=VALUE'", *key)
                  : fmt::format("see {}", help));
}

/// What people call commands that have another name.
constexpr std::pair<std::string_view, const char*> kOtherWords[] = {
    {"train", "did you mean 'launch'?"},
    {"run", "did you mean 'launch'?"},
    {"eval", "did you mean 'evaluate'?"},
    {"merge", "did you mean 'merge-weights'?"},
    {"convert", "did you mean 'merge-weights' or 'save'?"},
    {"export",
     "`accel-export MODEL_DIRECTORY model.pt2` exports a model; 'merge-weights' writes the weights of a "
     "checkpoint"},
};

/// What the type of an option says of its values: DIR is a directory, and FILE or a name such as MODEL.pt a
/// file. An argument is a path, if it does not have words to choose from.
Takes takes_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return Takes::kNothing;
  const std::string type = option.get_type_name();
  if (type == "DIR") return Takes::kDirectory;
  if (option.get_positional() || type == "FILE" || type == "PATH") return Takes::kFile;
  return type.find('.') != std::string::npos && !type.ends_with("...") ? Takes::kFile : Takes::kWord;
}

OptionOutline outline_of(const CLI::Option& option, const OfferedWords& offered) {
  OptionOutline outline;
  for (const std::string& name : option.get_snames()) outline.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) outline.names.push_back("--" + name);
  outline.takes = takes_of(option);
  if (const auto words = offered.find(&option); words != offered.end()) outline.words = words->second;
  outline.repeats = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  outline.help = option.get_description();
  return outline;
}

CommandOutline outline_of(const CLI::App& command, const OfferedWords& offered) {
  CommandOutline outline{command.get_name(), command.get_description(), {}, {}};
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    (option->nonpositional() ? outline.options : outline.arguments).push_back(outline_of(*option, offered));
  }
  return outline;
}

CLI::Option* with_need(CLI::Option* option, Command::Need need) {
  return option->required(need == Command::Need::kRequired);
}

}  // namespace

void Command::positional(const std::string& name, std::string& value, const std::string& help, Need need,
                         const std::string& type) {
  with_need(app_->add_option(name, value, help)->type_name(type), need);
}

void Command::positionals(const std::string& name, std::vector<std::string>& values,
                          const std::string& help) {
  with_need(app_->add_option(name, values, help)->type_name("TEXT")->take_all(), Need::kRequired);
}

void Command::flag(const std::string& names, bool& value, const std::string& help) {
  app_->add_flag(names, value, help);
}

void Command::text(const std::string& names, const std::string& type, std::string& value,
                   const std::string& help, Need need) {
  with_need(app_->add_option(names, value, help)->type_name(type), need);
}

void Command::text(const std::string& names, const std::string& type, std::optional<std::string>& value,
                   const std::string& help) {
  app_->add_option_function<std::string>(
          names, [&value](const std::string& given) { value = given; }, help)
      ->type_name(type);
}

void Command::texts(const std::string& names, const std::string& type, std::vector<std::string>& values,
                    const std::string& help) {
  app_->add_option(names, values, help)->type_name(type)->expected(1)->take_all()->allow_extra_args(false);
}

void Command::amount(const std::string& names, const std::string& type, double& value,
                     const std::string& help) {
  // The message of CLI11's own check has a range of 300 digits.
  const auto is_amount = [](const std::string& text) {
    double amount = 0;
    const bool number = CLI::detail::lexical_cast(text, amount);
    return number && amount >= 0 && std::isfinite(amount)
               ? std::string()
               : fmt::format("'{}' is not a number of at least 0", text);
  };
  app_->add_option(names, value, help)->check(is_amount)->type_name(type);
}

void Command::size(const std::string& names, std::uint64_t& bytes, const std::string& help) {
  const CLI::Validator to_bytes(
      [](std::string& text) {
        const std::optional<std::uint64_t> size = parse_size(text);
        if (!size) return fmt::format("'{}' is not a size such as 5GB", text);
        text = std::to_string(*size);
        return std::string();
      },
      "");
  app_->add_option(names, bytes, help)->transform(to_bytes)->type_name("SIZE");
}

void Command::does(Action action) {
  app_->callback([chosen = chosen_, action = std::move(action)] { *chosen = action; });
}

void Command::integer_to(const std::string& names, const std::string& type,
                         const std::function<void(std::int64_t)>& take, const std::string& help,
                         std::int64_t least, std::int64_t most) {
  app_->add_option_function<std::int64_t>(names, take, help)
      ->check(CLI::Range(least, most).description(""))
      ->type_name(type);
}

void Command::choice_to(const std::string& names, const std::string& type,
                        const std::vector<std::string>& words,
                        const std::function<void(const std::string&)>& take, const std::string& help,
                        Need need) {
  CLI::Option* option = app_->add_option_function<std::string>(names, take, help);
  with_need(option->check(CLI::IsMember(words).description(""))->type_name(type), need);
  (*offered_)[option] = words;
}

void Command::offer(const std::string& name, std::vector<std::string> words) {
  (*offered_)[app_->get_option(name)] = std::move(words);
}

CommandLine::CommandLine(const std::string& version)
    : version_(version),
      app_(std::make_unique<CLI::App>(
          "Trains models of torch.export and TorchScript sharded over processes, and works on PyTorch's "
          "checkpoints.",
          "accel")) {
  app_->require_subcommand(1);
  app_->footer(
      "\naccel-export, a program of its own, exports models of PyTorch and transformers for training.\n"
      "accel help COMMAND shows the arguments and options of a command.\n" +
      std::string(kExitCodes));
  add_global_flags();
}

CommandLine::~CommandLine() = default;

void CommandLine::add_global_flags() {
  app_->add_flag("--quiet", globals_.quiet, "Print only warnings and errors, also of ranks");
  app_->add_flag("--verbose", globals_.verbose, "Print more messages about what is done");
  app_->add_flag("--json", globals_.json, "Print results as JSON on stdout, errors as JSON on stderr");
  const std::map<std::string, log::Color> colors = {
      {"auto", log::Color::kAuto}, {"always", log::Color::kAlways}, {"never", log::Color::kNever}};
  CLI::Option* color = app_->add_option("--color", globals_.color,
                                        "Colour of verdicts, warnings and errors: auto, always or never")
                           ->transform(CLI::CheckedTransformer(colors, CLI::ignore_case).description(""))
                           ->type_name("WHEN");
  offered_[color] = {"auto", "always", "never"};
  app_->set_version_flag("-V,--version", version_, "Print the version, and what the program was built with");
}

Command CommandLine::add(const std::string& name, const std::string& help, const std::string& notes) {
  CLI::App* command = app_->add_subcommand(name, help);
  command->fallthrough();
  if (!group_.empty()) command->group(group_);
  command->footer(notes + std::string(kSeeExitCodes));
  return {*command, action_, offered_};
}

void CommandLine::check_command(const Arguments& arguments) const {
  if (!arguments.command) return;
  std::vector<std::string> names;
  for (const CLI::App* command : std::as_const(*app_).get_subcommands({}))
    names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), *arguments.command) != names.end()) return;
  Error error(ErrorKind::kUsage, fmt::format("unknown command '{}'", *arguments.command));
  for (const auto& [word, hint] : kOtherWords) {
    if (word == *arguments.command) throw std::move(error).hint(hint);
  }
  if (const auto near = nearest(*arguments.command, names)) {
    throw std::move(error).hint(fmt::format("did you mean '{}'?", *near));
  }
  throw std::move(error).hint("accel help lists the commands");
}

bool CommandLine::parse(const Arguments& arguments, std::ostream& out) {
  check_command(arguments);
  globals_.program = arguments.program;
  try {
    std::vector<std::string> reversed(arguments.own.rbegin(), arguments.own.rend());
    app_->parse(reversed);
    return true;
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> chosen = app_->get_subcommands();
    out << (chosen.empty() ? help() : wrapped(chosen.front()->help("accel"), width_));
  } catch (const CLI::CallForVersion&) {
    out << version_ << '\n';
  } catch (const CLI::ParseError& failure) {
    fail_usage(*app_, failure);
  }
  return false;
}

std::string CommandLine::help() const { return wrapped(app_->help(), width_); }

Outline CommandLine::outline() const {
  Outline outline;
  const CLI::App& app = *app_;
  outline.globals = outline_of(app, offered_).options;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_group().empty()) outline.commands.push_back(outline_of(*command, offered_));
  }
  return outline;
}

bool CommandLine::is_chosen(const std::string& command) const { return app_->got_subcommand(command); }

}  // namespace accel::cli
