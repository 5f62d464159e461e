#pragma once

#include <filesystem>
#include <span>

#include "core/config/config.hpp"
#include "core/config/keys/keys.hpp"
#include "core/config/value.hpp"

namespace accel::config {

/// Sets the members of `keys` that are a setting by themselves. A member in an optional section that `config`
/// does not have is left out. A required key that is missing is an Error of kind kUsage, which names `file`.
void set_members(std::span<const Key> keys, const Settings& settings, const std::filesystem::path& file,
                 Config& config);

/// Throws the error of a key that has no default and is not set.
[[noreturn]] void fail_missing(std::string_view path, const Settings& settings,
                               const std::filesystem::path& file);

}  // namespace accel::config
