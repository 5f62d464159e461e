#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/environment.hpp"

namespace accel::launch {

/// The variable with the secret that the launchers of a run share.
inline constexpr const char* kRunSecretVariable = "ACCEL_RUN_SECRET";

/// The secret in ACCEL_RUN_SECRET; empty if it is not set. One that is too short to be safe is an Error of
/// kind kUsage.
[[nodiscard]] std::string run_secret_in(const Environment& environment);

/// Returns the secret in `file`, and makes one, readable by its owner alone, if there is no file. The
/// directory must be there. A secret stays, so that a launcher that has read it knows the next one.
[[nodiscard]] std::string make_run_secret(const std::filesystem::path& file);

/// The secret in `file`; absent if there is no file. A file that others can read is a warning, one that does
/// not hold a secret an Error of kind kUsage.
[[nodiscard]] std::optional<std::string> read_run_secret(const std::filesystem::path& file);

}  // namespace accel::launch
