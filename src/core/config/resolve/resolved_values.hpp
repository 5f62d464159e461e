#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/config/loaded_config.hpp"
#include "core/config/value.hpp"

namespace accel::config {

/// One key of a configuration, with the value that the run has for it.
struct ResolvedValue {
  std::string key;  ///< The path without optional prefixes: "fsdp_config.version".
  Value value;
  std::optional<Origin> origin;        ///< Where the value was set; absent for a default.
  std::optional<std::string> written;  ///< The text that was set, if the value is another.
};

/// The keys of the run in the order of the schema. A key that the run does not use, such as one of a system
/// that accel does not have, is listed only if it is set, with the value as it was written. For a program of
/// the user that is every key of the engine. A null in a section above a key is its origin, because it hides
/// the values of the layers below.
std::vector<ResolvedValue> resolved_values(const LoadedConfig& loaded);

}  // namespace accel::config
