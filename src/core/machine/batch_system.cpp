#include "core/machine/batch_system.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "core/config/settings/scheduler.hpp"

namespace accel::machine {

BatchSystem find_batch_system(const Environment& environment) {
  BatchSystem system;
  if (const auto job = environment("SLURM_JOB_ID")) {
    const auto step = environment("SLURM_STEP_ID");
    system.found.push_back(step ? fmt::format("Slurm, job {}, step {}", *job, *step)
                                : fmt::format("Slurm, job {}", *job));
  }
  const auto add = [&](const char* name, const char* rank_name, const char* size_name) {
    if (const auto size = environment(size_name)) {
      system.found.push_back(
          fmt::format("{}, process {} of {}", name, environment(rank_name).value_or("?"), *size));
    }
  };
  add("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  add("PMI", "PMI_RANK", "PMI_SIZE");
  add("Kubeflow", "PET_NODE_RANK", "PET_NNODES");
  if (const auto index = environment("JOB_COMPLETION_INDEX"))
    system.found.push_back(fmt::format("Kubernetes, completion index {}", *index));
  try {
    const config::SchedulerSettings settings = config::settings_from_scheduler(environment);
    system.num_machines = settings.machines.get<std::int64_t>("num_machines");
    system.machine_rank = settings.machines.get<std::int64_t>("machine_rank");
  } catch (const Error& error) {
    system.why_not = error.message();
  }
  return system;
}

}  // namespace accel::machine
