#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace accel::machine {

/// What stands in place of a secret.
inline constexpr std::string_view kMasked = "(masked)";

/// Whether a variable may hold a secret: its name says so (a token, a key, a password), or its value has the
/// form of one.
[[nodiscard]] bool looks_secret(std::string_view name, std::string_view value);

/// Those variables of an environment ("NAME=value") that change what accel, its ranks or the libraries under
/// them do: ACCEL_*, FSDP_*, NCCL_*, SLURM_* and others. kMasked stands for values that look like secrets.
[[nodiscard]] std::map<std::string, std::string> relevant_variables(
    const std::vector<std::string>& environment);

}  // namespace accel::machine
