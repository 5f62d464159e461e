#include "core/config/settings/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "base/error.hpp"

namespace accel::config {
namespace {

std::optional<std::int64_t> number(const Environment& environment, const std::string& name) {
  const std::optional<std::string> text = environment(name);
  std::int64_t value = 0;
  if (!text) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  return value;
}

void put(Settings& settings, const char* path, Value value, const char* variable) {
  settings.set(path, {std::move(value), {Origin::Layer::kEnvironment, variable}});
}

void add_machines(SchedulerSettings& result, std::int64_t count, std::int64_t rank, const char* count_name,
                  const char* rank_name) {
  put(result.machines, "num_machines", count, count_name);
  put(result.machines, "machine_rank", rank, rank_name);
}

/// Whether `srun` started this process on one of several nodes. In a batch script the variables of a step are
/// not set.
bool take_slurm(const Environment& environment, SchedulerSettings& result) {
  const auto nodes = number(environment, "SLURM_STEP_NUM_NODES");
  const auto node = number(environment, "SLURM_NODEID");
  if (!nodes || !node || *nodes < 2) return false;
  const std::int64_t tasks = number(environment, "SLURM_STEP_NUM_TASKS").value_or(*nodes);
  if (tasks != *nodes) {
    throw Error(ErrorKind::kUsage,
                fmt::format("srun starts {} tasks on {} nodes, and `accel launch` is started once on each",
                            tasks, *nodes))
        .hint(
            "srun --ntasks-per-node=1 accel launch ...; num_processes says how many ranks there are in all");
  }
  add_machines(result, *nodes, *node, "SLURM_STEP_NUM_NODES", "SLURM_NODEID");
  if (const auto list = environment("SLURM_STEP_NODELIST"))
    put(result.address, "main_process_ip", first_host(*list), "SLURM_STEP_NODELIST");
  // Jobs that share a node have ports of their own.
  constexpr std::int64_t kFirst = 15'000;
  constexpr std::int64_t kCount = 15'000;
  const std::int64_t job = number(environment, "SLURM_JOB_ID").value_or(0);
  const std::int64_t step = number(environment, "SLURM_STEP_ID").value_or(0);
  put(result.address, "main_process_port", kFirst + (job * 10 + step) % kCount, "SLURM_JOB_ID");
  return true;
}

bool take_mpi(const Environment& environment, SchedulerSettings& result, const char* size_name,
              const char* rank_name, const char* local_name) {
  const auto size = number(environment, size_name);
  const auto rank = number(environment, rank_name);
  if (!size || !rank || *size < 2 || number(environment, local_name) != 1) return false;
  add_machines(result, *size, *rank, size_name, rank_name);
  return true;
}

}  // namespace

std::string first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    // The first number of a list such as [01-03,7].
    const std::size_t close = list.find(']');
    host += list.substr(1, std::min(list.find_first_of(",-]"), list.size()) - 1);
    list.remove_prefix(close == std::string_view::npos ? list.size() : close + 1);
  }
  return host;
}

SchedulerSettings settings_from_scheduler(const Environment& environment) {
  SchedulerSettings result;
  // Open MPI comes first, because it may start its daemons with srun.
  if (take_mpi(environment, result, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
               "OMPI_COMM_WORLD_LOCAL_SIZE"))
    return result;
  if (take_slurm(environment, result)) return result;
  take_mpi(environment, result, "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS");
  return result;
}

}  // namespace accel::config
