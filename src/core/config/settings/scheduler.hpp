#pragma once

#include <string>
#include <string_view>

#include "base/environment.hpp"
#include "core/config/value.hpp"

namespace accel::config {

/// What a scheduler that started one launcher on each of several machines says about them: `machines` has
/// num_machines and machine_rank, `address` has main_process_ip and main_process_port. Both are empty if
/// there is no such scheduler. Slurm (srun) says all of it, Open MPI and PMI only the former. Several
/// launchers of a step on one machine are an Error of kind kUsage under Slurm.
struct SchedulerSettings {
  Settings machines;
  Settings address;
};

[[nodiscard]] SchedulerSettings settings_from_scheduler(const Environment& environment);

/// The first host of a list as Slurm writes it: "node01" of "node[01-03,7],login".
[[nodiscard]] std::string first_host(std::string_view list);

}  // namespace accel::config
