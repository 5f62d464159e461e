#pragma once

#include <string>

#include "core/config/schema/schema.hpp"
#include "core/config/settings/yaml.hpp"
#include "core/config/value.hpp"

namespace accel::core {

/// The typed value of a node for a field, spelled as the field's choices spell it. A wrong type, a value out
/// of range and one that is none of the choices are Errors of kind kUsage that point at the node.
Value convert_value(const Field& field, const YamlNode& node);

/// What stands in the file, for "found ...": "'fast'", "a list", "a section".
std::string describe(const YamlNode& node);

}  // namespace accel::core
