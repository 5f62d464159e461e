#pragma once

#include <filesystem>

#include "base/environment.hpp"

namespace accel::core {

/// How many NVIDIA GPUs a process started now would see, found without CUDA: what CUDA_VISIBLE_DEVICES names,
/// else what the driver lists below `root` (/proc/driver/nvidia/gpus, else /dev/nvidia0, ...).
int visible_gpus(const Environment& environment, const std::filesystem::path& root = "/");

/// The physical cores among the processors that this process may run on, but no more than the quota of its
/// control group has whole CPUs; at least 1.
int physical_cores(const std::filesystem::path& root = "/");

/// Whether a server can listen on `port` of every address of this machine.
bool port_is_free(int port);

/// A port that is free now. Somebody may take it before it is used.
int free_port();

}  // namespace accel::core
