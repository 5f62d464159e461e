#pragma once

#include <filesystem>
#include <string>

#include "base/environment.hpp"

namespace accel::core {

/// The accel-worker that belongs to this executable: `../libexec/accel/accel-worker` beside an installed one,
/// `../train/accel-worker` in a build tree, else what ACCEL_WORKER names. `chosen` (launch.worker) goes
/// before all.
std::filesystem::path find_worker(const std::filesystem::path& executable,
                                  const std::filesystem::path& chosen, const Environment& environment);

/// `name` as a shell would find it: itself if it has a slash, else along PATH.
std::filesystem::path find_program(const std::string& name, const Environment& environment);

}  // namespace accel::core
