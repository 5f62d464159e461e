#pragma once

#include <filesystem>
#include <string>

#include "base/environment.hpp"

namespace accel::launch {

/// The accel-worker to run: `chosen` (launch.worker) if it is not empty, else the one that belongs to
/// `executable`: `../libexec/accel/accel-worker` of an installed one, `../train/accel-worker` in a build
/// tree, or `../lib/python3.*/site-packages/accel_worker/accel-worker` where the wheels are installed; else
/// the one that ACCEL_WORKER names. An Error if there is none.
std::filesystem::path find_worker(const std::filesystem::path& executable,
                                  const std::filesystem::path& chosen, const Environment& environment);

/// The program that a shell would find: `name` itself if it has a slash, else along PATH. An Error if there
/// is none.
std::filesystem::path find_program(const std::string& name, const Environment& environment);

}  // namespace accel::launch
