#pragma once

#include <string_view>

#include "base/environment.hpp"
#include "core/config/schema/schema.hpp"
#include "core/config/settings/yaml.hpp"
#include "core/config/value.hpp"

namespace accel::core {

/// Checks a parsed file against the schema and flattens it. A key that is unknown or given twice, a value of
/// the wrong type, out of range or not among the choices is an Error of kind kUsage that points at it and
/// names the nearest known key or value.
Settings settings_from_yaml(const YamlNode& root);

/// The setting of `--set PATH=VALUE`; VALUE is YAML. Errors name the flag.
Settings settings_from_assignment(std::string_view assignment);

/// The setting of one path given as text, for flags that have their own name. `shown` is the flag for
/// messages.
Settings settings_from_flag(std::string_view path, std::string_view value, std::string_view shown);

/// What ACCELERATE_* and FSDP_* variables set, those that Accelerate itself reads back.
Settings settings_from_environment(const Environment& environment);

/// Checks that what the merged settings ask for has been built; `reader` kLauncher leaves the engine's keys
/// alone. The first value, in the order flags, file, environment, that has not is an Error of kind kUsage.
void check_built(const Settings& settings, Reader reader);

}  // namespace accel::core
