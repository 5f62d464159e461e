#pragma once

#include <filesystem>
#include <string>

#include "base/environment.hpp"
#include "core/config/loaded_config.hpp"
#include "core/launch/agent/plan.hpp"

namespace accel::core {

/// A run as all of its ranks see it.
struct World {
  int num_processes = 1;
  int local_ranks = 1;
  int machine_rank = 0;
  int num_machines = 1;
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
};

/// The variables that torchrun gives to the worker with this local rank.
Variables torchrun_variables(const World& world, int local_rank, const std::filesystem::path& error_file);

/// The variables by which `accelerate launch` tells a Python script its configuration (ACCELERATE_*, FSDP_*).
Variables accelerate_variables(const LoadedConfig& loaded);

/// What all workers of this machine get when nobody has set it: OMP_NUM_THREADS, which is 1 for ranks with a
/// GPU unless their optimizers work on the host; and CUDA_VISIBLE_DEVICES if the configuration chooses GPUs.
/// `physical_cores` are those this process may use.
Variables machine_variables(const LoadedConfig& loaded, int physical_cores, const Environment& environment);

/// What accel-worker gets, and a program does not: how glibc's malloc serves tensors, unless the user says
/// something of malloc himself; other tunables of his stay in front. Large pages, and no return of memory to
/// the system between tensors, since the next step faults the same pages in again.
Variables worker_variables(const Environment& environment);

}  // namespace accel::core
