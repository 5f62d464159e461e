#include "cli/launch_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/text.hpp"
#include "core/config/keys/document.hpp"
#include "core/config/settings/settings.hpp"
#include "core/launch/world/machine.hpp"

namespace accel::cli {
namespace {

/// The help of a flag: the first sentence about its key, and the default.
std::string help_of(const config::Key& key) {
  const std::string_view help = key.help.substr(0, key.help.find(". "));
  const std::string standard = config::default_in_words(key);
  return standard.empty() ? std::string(help) : fmt::format("{} ({})", help, standard);
}

/// The supported keys of the configuration, each with the "=" that follows it.
std::vector<std::string> keys_to_set() {
  std::vector<std::string> keys;
  for (const auto table : {config::run_keys(), config::training_keys()}) {
    for (const config::Key& key : table) {
      if (key.built != config::kNothing) keys.push_back(std::string(key.path) + "=");
    }
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace

void LaunchFlags::add_to(Command& command) {
  command.texts("--set", "KEY=VALUE", assignments_, "Set a value of the configuration; may be repeated");
  command.offer("--set", keys_to_set());
  for (const config::Key& key : config::run_keys()) {
    if (key.flag.empty()) continue;
    const std::size_t space = std::min(key.flag.find(' '), key.flag.size());
    Flag& flag = flags_.emplace_back(Flag{&key, std::string(key.flag.substr(0, space)), {}});
    if (space == key.flag.size()) {
      command.flag(flag.names, flag.is_given, std::string(key.help));
      continue;
    }
    command.text(flag.names, std::string(key.flag.substr(space + 1)), flag.value, help_of(key));
    if (!key.choices.empty()) command.offer(flag.names, split(key.built, '|'));
  }
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
  request.flags = settings();
  return request;
}

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace accel::cli
