#pragma once

#include <filesystem>

#include "base/environment.hpp"

namespace accel::launch {

/// How many NVIDIA GPUs a process that starts now would see, found without CUDA: those that
/// CUDA_VISIBLE_DEVICES names, else those that the driver lists below `root` (/proc/driver/nvidia/gpus, else
/// /dev/nvidia0, ...).
int visible_gpus(const Environment& environment, const std::filesystem::path& root = "/");

/// How many physical cores this process may run on, but no more than the quota of its control group has whole
/// CPUs, and at least 1.
int physical_cores(const std::filesystem::path& root = "/");

}  // namespace accel::launch
