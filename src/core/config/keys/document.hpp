#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/config/config.hpp"
#include "core/config/keys/keys.hpp"

namespace accel::config {

/// The resolved configuration as JSON and back: config_from_json(config_to_json(c)) equals c.
/// config_from_json throws an Error of kind kUsage for a document that config_to_json did not write.
nlohmann::json config_to_json(const Config& config);
Config config_from_json(const nlohmann::json& document);

/// Calls `visit` for each value of the resolved configuration in the order of the tables, with its key and
/// its JSON. A value below an optional section that the configuration does not have is left out.
void visit_resolved(const Config& config,
                    const std::function<void(const Key& key, const nlohmann::json& value)>& visit);

/// The value of a key in `config` as JSON. The key has a member, and the sections above it exist.
nlohmann::json resolved_value(const Key& key, const Config& config);

/// The value that a key has if nobody sets it. It is null for a key that has none then, and for one whose
/// default depends on other keys. A key without a member has the only value that accel supports.
nlohmann::json default_of(const Key& key);

/// The default for a reader: Key::standard, or default_of(). Empty for none.
std::string default_in_words(const Key& key);

/// The value of a key's member, to be changed; nullptr if the section above it does not exist.
void* value_to_set(const Key& key, Config& config);

/// Throws the error of a resolved configuration that config_to_json() did not write.
[[noreturn]] void fail_resolved(std::string_view where, std::string_view found);

}  // namespace accel::config
