#pragma once

#include <string>

#include "core/config/keys/keys.hpp"
#include "core/config/settings/yaml.hpp"
#include "core/config/value.hpp"

namespace accel::config {

/// The typed value of a node for a key, spelled as among the key's choices. A wrong type, a value out of
/// range and a value that is not among the choices are Errors of kind kUsage that point at the node.
Value convert_value(const Key& key, const YamlNode& node);

/// The node in an error, behind "found": "'fast'", "a list", "a section".
std::string describe(const YamlNode& node);

}  // namespace accel::config
