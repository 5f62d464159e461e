#include "core/config/settings/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "base/error.hpp"
#include "base/text.hpp"

namespace accel::config {
namespace {

std::optional<std::int64_t> number(const Environment& environment, const std::string& name) {
  const std::optional<std::string> text = environment(name);
  return text ? parse_int<std::int64_t>(*text) : std::nullopt;
}

void put(Settings& settings, const char* path, Value value, const char* variable) {
  settings.set(path, {std::move(value), {Origin::Layer::kEnvironment, variable}});
}

void add_machines(SchedulerSettings& result, std::int64_t count, std::int64_t rank, const char* count_name,
                  const char* rank_name) {
  put(result.machines, "num_machines", count, count_name);
  put(result.machines, "machine_rank", rank, rank_name);
}

[[noreturn]] void refuse_several_on_a_machine(const std::string& found, const std::string& advice) {
  throw Error(ErrorKind::kUsage, fmt::format("{}, and `accel launch` is started once on each machine", found))
      .hint(fmt::format("{}; num_processes says how many ranks there are in all. With --num-machines 1 "
                        "each task launches a run of its own",
                        advice));
}

/// The first of these variables that is set and says which run this is.
void take_run_id(const Environment& environment, SchedulerSettings& result,
                 std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::string id = environment(name).value_or("");
    // torchrun has "none" by default.
    if (!id.empty() && id != "none") return put(result.address, "launch.run_id", id, name);
  }
}

/// Whether `srun` started this process on one of several nodes. In a batch script the variables of a step are
/// not set.
bool take_slurm(const Environment& environment, SchedulerSettings& result) {
  const auto nodes = number(environment, "SLURM_STEP_NUM_NODES");
  const auto node = number(environment, "SLURM_NODEID");
  if (!nodes || !node || *nodes < 1) return false;
  const std::int64_t tasks = number(environment, "SLURM_STEP_NUM_TASKS").value_or(*nodes);
  if (tasks > *nodes) {
    const auto local = number(environment, "SLURM_LOCALID");
    refuse_several_on_a_machine(
        fmt::format("srun starts {} tasks on {} node{} (SLURM_STEP_NUM_TASKS{})", tasks, *nodes,
                    *nodes == 1 ? "" : "s", local ? fmt::format("; SLURM_LOCALID is {}", *local) : ""),
        "srun --ntasks-per-node=1 accel launch ...");
  }
  if (*nodes < 2) return false;
  add_machines(result, *nodes, *node, "SLURM_STEP_NUM_NODES", "SLURM_NODEID");
  if (const auto list = environment("SLURM_STEP_NODELIST"))
    put(result.address, "main_process_ip", first_host(*list), "SLURM_STEP_NODELIST");
  // Jobs that share a node have ports of their own.
  constexpr std::int64_t kFirst = 15'000;
  constexpr std::int64_t kCount = 15'000;
  const std::int64_t job = number(environment, "SLURM_JOB_ID").value_or(0);
  const std::int64_t step = number(environment, "SLURM_STEP_ID").value_or(0);
  put(result.address, "main_process_port", kFirst + (job * 10 + step) % kCount, "SLURM_JOB_ID");
  // A job that is put back into the queue keeps its number.
  put(result.address, "launch.run_id",
      fmt::format("slurm-{}.{}.{}", job, number(environment, "SLURM_RESTART_COUNT").value_or(0), step),
      "SLURM_JOB_ID");
  return true;
}

/// The variables of an MPI, and how its launcher starts one process on each machine.
struct MpiNames {
  const char* size;
  const char* rank;
  const char* local_size;
  const char* advice;
};
constexpr MpiNames kOpenMpi = {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                               "mpirun --map-by ppr:1:node accel launch ..."};
constexpr MpiNames kPmi = {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "mpiexec -ppn 1 accel launch ..."};

bool take_mpi(const Environment& environment, SchedulerSettings& result, const MpiNames& names) {
  const auto size = number(environment, names.size);
  const auto rank = number(environment, names.rank);
  const auto local = number(environment, names.local_size);
  if (!size || !rank || !local || *size < 2) return false;
  if (*local > 1) {
    refuse_several_on_a_machine(
        fmt::format("MPI starts {} processes, several of them on this machine ({} is {})", *size,
                    names.local_size, *local),
        names.advice);
  }
  add_machines(result, *size, *rank, names.size, names.rank);
  return true;
}

void add_address(const Environment& environment, SchedulerSettings& result, const char* address_name,
                 const char* port_name) {
  if (const auto address = environment(address_name))
    put(result.address, "main_process_ip", *address, address_name);
  if (const auto port = number(environment, port_name))
    put(result.address, "main_process_port", *port, port_name);
}

/// torchrun's variables in a pod of Kubeflow (PyTorchJob, TrainJob). An elastic job, such as PET_NNODES=1:4,
/// has no fixed number of machines.
bool take_kubeflow(const Environment& environment, SchedulerSettings& result) {
  std::string text = environment("PET_NNODES").value_or("");
  if (const std::size_t colon = text.find(':');
      colon != std::string::npos && text.substr(0, colon) == text.substr(colon + 1))
    text.resize(colon);
  const auto nodes = parse_int<std::int64_t>(text);
  const auto node = number(environment, "PET_NODE_RANK");
  if (!nodes || *nodes < 1 || (*nodes > 1 && !node)) return false;
  if (*nodes > 1) {
    add_machines(result, *nodes, *node, "PET_NNODES", "PET_NODE_RANK");
    add_address(environment, result, "PET_MASTER_ADDR", "PET_MASTER_PORT");
  }
  constexpr std::int64_t kMost = 65536;
  if (const auto ranks = number(environment, "PET_NPROC_PER_NODE");
      ranks && *ranks > 0 && *ranks <= kMost && *nodes <= kMost)
    put(result.address, "num_processes", *nodes * *ranks, "PET_NPROC_PER_NODE");
  return true;
}

/// The variables that the operator of PyTorchJobs sets if it does not set those of torchrun. WORLD_SIZE and
/// RANK count pods then. A rank that torchrun has started in a pod has LOCAL_RANK.
bool take_pytorch_job(const Environment& environment, SchedulerSettings& result) {
  if (!environment("KUBERNETES_SERVICE_HOST") || environment("LOCAL_RANK") || environment("PET_NNODES"))
    return false;
  const auto pods = number(environment, "WORLD_SIZE");
  const auto pod = number(environment, "RANK");
  if (!pods || !pod || *pods < 2) return false;
  add_machines(result, *pods, *pod, "WORLD_SIZE", "RANK");
  add_address(environment, result, "MASTER_ADDR", "MASTER_PORT");
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
  if (take_mpi(environment, result, kOpenMpi)) {
    take_run_id(environment, result, {"PMIX_NAMESPACE"});
  } else if (take_slurm(environment, result)) {
    // It says which run this is, too.
  } else if (take_mpi(environment, result, kPmi)) {
    take_run_id(environment, result, {"PMI_JOBID", "PALS_APID", "PMIX_NAMESPACE"});
  } else if (!take_kubeflow(environment, result) && !take_pytorch_job(environment, result)) {
    if (const auto index = number(environment, "JOB_COMPLETION_INDEX"); index && *index >= 0)
      put(result.index, "machine_rank", *index, "JOB_COMPLETION_INDEX");
  }
  if (!result.address.has("launch.run_id"))
    take_run_id(environment, result, {"PET_RDZV_ID", "TORCHELASTIC_RUN_ID"});
  return result;
}

}  // namespace accel::config
