#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>

namespace accel::ckpt {

/// The pickle of a TorchScript archive with the device "cpu" for the storages `keys`, whatever device they
/// have in `pickle`. Everything else stays as it is. Throws Error: kCorrupt if the pickle is damaged,
/// kFailure if it does not describe storages as torch's C++ code does.
[[nodiscard]] std::string with_storages_on_cpu(std::span<const std::byte> pickle,
                                               const std::set<std::string>& keys);

}  // namespace accel::ckpt
