#pragma once

#include <nlohmann/json_fwd.hpp>

namespace accel::config {

/// A JSON Schema (draft 2020-12) of configuration files, made from the tables of fields, for editors.
///
/// It describes each key by itself: its type, range and choices. What depends on several keys, files or the
/// machine is checked by load_config() alone. It has the choices in the spelling of the tables, although
/// accel takes them in upper and lower case. Keys with an optional prefix are in it with and without.
nlohmann::ordered_json json_schema();

}  // namespace accel::config
