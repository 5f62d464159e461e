#pragma once

#include <filesystem>
#include <string>

#include "base/environment.hpp"

namespace accel::core {

/// The accel-worker to run: `chosen` (launch.worker) if it is not empty, else the one that belongs to
/// `executable`, `../libexec/accel/accel-worker` of an installed one or `../train/accel-worker` in a build
/// tree, else the one that ACCEL_WORKER names. An Error if there is none.
std::filesystem::path find_worker(const std::filesystem::path& executable,
                                  const std::filesystem::path& chosen, const Environment& environment);

/// The program that a shell would find: `name` itself if it has a slash, else along PATH. An Error if there
/// is none.
std::filesystem::path find_program(const std::string& name, const Environment& environment);

}  // namespace accel::core
