#pragma once

#include <filesystem>
#include <string>

#include "base/environment.hpp"
#include "core/config/loaded_config.hpp"
#include "core/launch/agent/plan.hpp"

namespace accel::launch {

/// The world of a run, as this machine sees it.
struct World {
  int num_processes = 1;
  int local_ranks = 1;
  int first_rank = 0;  ///< The first of the ranks of this machine.
  int machine_rank = 0;
  int num_machines = 1;
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
  int restarts = 0;      ///< How often the run has begun again.
  int max_restarts = 0;  ///< How often it may.
};

/// The variables that torchrun gives to the worker with this local rank.
Variables torchrun_variables(const World& world, int local_rank, const std::filesystem::path& error_file);

/// The variables by which `accelerate launch` tells a Python script its configuration (ACCELERATE_*, FSDP_*).
Variables accelerate_variables(const config::LoadedConfig& loaded);

/// The variables that all workers of this machine get: OMP_NUM_THREADS and TORCH_NCCL_ASYNC_ERROR_HANDLING
/// unless the environment sets them, CUDA_VISIBLE_DEVICES if the configuration chooses GPUs, and with
/// launch.expandable_segments the options of torch's allocator for GPUs. Ranks with a
/// GPU have one thread, unless their optimizers work on the host. `physical_cores` are those that this
/// process may use.
Variables machine_variables(const config::LoadedConfig& loaded, int physical_cores,
                            const Environment& environment);

/// The variables that only accel-worker gets: tunables of glibc's malloc, unless the environment sets some
/// itself. They ask for large pages, and keep freed memory instead of returning it to the system, because the
/// next step would fault the same pages in again. Other tunables of the environment stay in front.
Variables worker_variables(const Environment& environment);

}  // namespace accel::launch
