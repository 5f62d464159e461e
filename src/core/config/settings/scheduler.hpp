#pragma once

#include <string>
#include <string_view>

#include "base/environment.hpp"
#include "core/config/value.hpp"

namespace accel::config {

/// What a scheduler that started one launcher on each of several machines says about them. Slurm (srun) and
/// Kubeflow say all of it, Open MPI and PMI `machines` and launch.run_id. The run_id of torchrun is taken in
/// any case. Several launchers of one run on a machine, as Slurm and MPI show them, are an Error of kind
/// kUsage.
struct SchedulerSettings {
  Settings machines;  ///< num_machines and machine_rank; empty on one machine and without a scheduler.
  /// main_process_ip, main_process_port, launch.run_id and, from Kubeflow, num_processes.
  Settings address;
  /// machine_rank, from the completion index of a Job of Kubernetes. It counts if something else says that
  /// the run has several machines: the pods of such a Job may as well have a run each.
  Settings index;
};

[[nodiscard]] SchedulerSettings settings_from_scheduler(const Environment& environment);

/// The first host of a list as Slurm writes it: "node01" of "node[01-03,7],login".
[[nodiscard]] std::string first_host(std::string_view list);

}  // namespace accel::config
