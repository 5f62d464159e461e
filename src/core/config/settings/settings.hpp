#pragma once

#include <string_view>

#include "base/environment.hpp"
#include "core/config/keys/keys.hpp"
#include "core/config/settings/yaml.hpp"
#include "core/config/value.hpp"

namespace accel::config {

/// Checks a parsed file against the schema and flattens it. A key that is unknown or set twice, and a value
/// that has the wrong type, is out of range or is not among the choices, is an Error of kind kUsage that
/// points at it and names the nearest known key or value.
Settings settings_from_yaml(const YamlNode& root);

/// Those settings at the top level of a parsed file that may ask for another system. All other keys are
/// neither checked nor taken: a file for another system has keys of its own.
Settings systems_from_yaml(const YamlNode& root);

/// The setting of `--set PATH=VALUE`; VALUE is YAML. Errors name the flag.
Settings settings_from_assignment(std::string_view assignment);

/// The setting of one path, given as text, for a flag with a name of its own. `shown` is the flag in
/// messages.
Settings settings_from_flag(std::string_view path, std::string_view value, std::string_view shown);

/// The settings of the environment variables that Accelerate reads (Key::variable). A variable is not read
/// where `above` sets its key.
Settings settings_from_environment(const Environment& environment, const Settings& above = {});

/// Checks that accel supports what the merged settings ask for; with `only_launcher` the keys that only the
/// engine reads are not checked. The first value that is not supported, in the order flags, file,
/// environment, is an Error of kind kUsage.
void check_built(const Settings& settings, bool only_launcher);

}  // namespace accel::config
