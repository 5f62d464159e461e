#include "cli/launch/launch_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/environment.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "core/config/keys/document.hpp"
#include "core/config/settings/settings.hpp"
#include "core/launch/world/machine.hpp"
#include "core/machine/gpus.hpp"

namespace accel::cli {
namespace {

/// The help of a flag: the first sentence about its key, and the default.
std::string help_of(const config::Key& key) {
  const std::string_view help = key.help.substr(0, key.help.find(". "));
  const std::string standard = config::default_in_words(key);
  return standard.empty() ? std::string(help) : fmt::format("{} ({})", help, standard);
}

/// The supported values of a key, if they can be listed.
std::vector<std::string> values_of(const config::Key& key) {
  if (key.built != config::kEverything) return split(key.built, '|');
  if (!key.choices.empty()) return split(key.choices, '|');
  return key.type == config::Type::kBool ? std::vector<std::string>{"true", "false"}
                                         : std::vector<std::string>();
}

/// The supported keys of the configuration, each with the "=" that follows it, and with each of its values.
std::vector<std::string> keys_to_set() {
  std::vector<std::string> keys;
  for (const auto table : {config::run_keys(), config::training_keys()}) {
    for (const config::Key& key : table) {
      if (key.built == config::kNothing) continue;
      const std::string begin = std::string(key.path) + "=";
      keys.push_back(begin);
      for (const std::string& value : values_of(key)) keys.push_back(begin + value);
    }
  }
  // The values of a key keep the order that its row has.
  std::stable_sort(keys.begin(), keys.end(), [](const std::string& a, const std::string& b) {
    return a.substr(0, a.find('=')) < b.substr(0, b.find('='));
  });
  return keys;
}

/// The file that `accelerate config` writes and `accelerate launch` takes if none is named; empty if there is
/// none.
std::string accelerates_file(const Environment& environment) {
  const auto folder = [&](const char* variable) -> std::filesystem::path {
    return environment(variable).value_or("");
  };
  std::filesystem::path home = folder("HF_HOME");
  if (home.empty()) {
    std::filesystem::path cache = folder("XDG_CACHE_HOME");
    if (cache.empty() && !folder("HOME").empty()) cache = folder("HOME") / ".cache";
    if (cache.empty()) return "";
    home = cache / "huggingface";
  }
  for (const char* name : {"default_config.yaml", "default_config.json"}) {
    const std::filesystem::path file = home / "accelerate" / name;
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error)) return file.string();
  }
  return "";
}

}  // namespace

void LaunchFlags::add_to(Command& command) {
  command.texts("--set", "KEY=VALUE", assignments_, "Set a value of the configuration; may be repeated");
  command.offer("--set", keys_to_set());
  for (const auto table : config::key_tables()) {
    for (const config::Key& key : table) {
      if (!key.flag.empty()) add_to(command, key);
    }
  }
}

void LaunchFlags::add_to(Command& command, const config::Key& key) {
  const std::size_t space = std::min(key.flag.find(' '), key.flag.size());
  Flag& flag = flags_.emplace_back(Flag{&key, std::string(key.flag.substr(0, space)), {}});
  if (space == key.flag.size()) {
    command.flag(flag.names, flag.is_given, std::string(key.help));
    return;
  }
  command.text(flag.names, std::string(key.flag.substr(space + 1)), flag.value, help_of(key));
  if (!key.choices.empty()) command.offer(flag.names, values_of(key));
}

void LaunchWords::add_to(Command& command) {
  command.positional("config", positional_, "The configuration", Command::Need::kOptional, "CONFIG.yaml");
  command.text("--config-file", "FILE", flag_, "The configuration, as Accelerate names it");
  command.flag("-m,--module", ignored_, "The program is a Python module");
  command.flag("--no-python", ignored_, "A program *.py that is not executable is not given to Python");
}

std::string LaunchWords::configuration(const std::string& command, bool runs_program) const {
  if (!positional_.empty() && !flag_.empty()) {
    throw Error(ErrorKind::kUsage,
                fmt::format("two configurations are named: '{}' and '{}'", positional_, flag_))
        .hint("keep one of the two");
  }
  if (has_configuration()) return positional_.empty() ? flag_ : positional_;
  if (!runs_program) {
    throw Error(ErrorKind::kUsage, fmt::format("{} needs a configuration file", command))
        .hint(fmt::format("accel {0} CONFIG.yaml, or accel {0} --num-processes 2 -- PROGRAM", command));
  }
  std::string file = accelerates_file(environment_variable);
  if (!file.empty())
    log::info(fmt::format("the configuration is '{}', as for accelerate launch; --config-file names another",
                          file));
  return file;
}

std::vector<config::Settings> LaunchFlags::settings() const {
  std::vector<config::Settings> settings;
  for (const std::string& assignment : assignments_)
    settings.push_back(config::settings_from_assignment(assignment));
  for (const Flag& flag : flags_) {
    if (flag.value)
      settings.push_back(config::settings_from_flag(flag.key->path, *flag.value,
                                                    fmt::format("{} {}", flag.names, *flag.value)));
    if (flag.is_given)
      settings.push_back(
          config::settings_from_flag(flag.key->path, "true", flag.names.substr(0, flag.names.find(','))));
  }
  return settings;
}

config::ConfigRequest LaunchFlags::request(const std::string& file) const {
  config::ConfigRequest request;
  request.file = file;
  request.environment = environment_variable;
  request.visible_gpus = launch::visible_gpus(environment_variable);
  request.compute_capability = [](const std::vector<int>& gpu_ids) {
    return machine::least_compute_capability(environment_variable, gpu_ids);
  };
  request.flags = settings();
  return request;
}

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace accel::cli
