#include <fmt/format.h>

#include <limits>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/config/names.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

constexpr int kMostProcesses = 65536;

/// 0 if log files may have any size.
std::uint64_t log_max_bytes(const Settings& settings) {
  static constexpr std::string_view kKey = "launch.log_max_size";
  const auto text = settings.get<std::string>(kKey);
  if (!text) return 0;
  // Rotation for every few lines would keep the launcher from everything else.
  constexpr std::uint64_t kLeast = 4096;
  const auto bytes = parse_size(*text);
  if (bytes && (*bytes == 0 || *bytes >= kLeast)) return *bytes;
  if (bytes)
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}' must be at least {} bytes; found '{}'",
                                               settings.where(kKey), kKey, kLeast, *text));
  throw Error(ErrorKind::kUsage, fmt::format("{}'{}' must be a size, such as 100MB; found '{}'",
                                             settings.where(kKey), kKey, *text));
}

/// The GPUs that `gpu_ids` names; empty for "all" and if it is missing.
std::vector<int> named_gpus(const Settings& settings, int visible_gpus) {
  const auto words = settings.get<std::vector<std::string>>("gpu_ids");
  std::vector<int> gpus;
  if (!words || (words->size() == 1 && words->front() == "all")) return gpus;
  std::set<int> seen;
  for (const std::string& word : *words) {
    const int gpu = parse_int(word).value_or(-1);
    if (gpu < 0) {
      throw Error(ErrorKind::kUsage, fmt::format("{}'gpu_ids' must be 'all' or numbers of GPUs, found '{}'",
                                                 settings.where("gpu_ids"), word));
    }
    if (!seen.insert(gpu).second) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("{}'gpu_ids' names GPU {} twice", settings.where("gpu_ids"), gpu));
    }
    if (gpu >= visible_gpus) {
      throw Error(ErrorKind::kUsage, fmt::format("{}'gpu_ids' names GPU {}, but {} are visible here",
                                                 settings.where("gpu_ids"), gpu, visible_gpus));
    }
    gpus.push_back(gpu);
  }
  return gpus;
}

/// The most ranks that a machine of the run may have. All machines have the same `launch.tee`, whatever
/// launch.local_processes says on each, and it stays the same if the largest of them are lost.
int most_local_ranks(const Settings& settings, const LaunchConfig& launch) {
  if (settings.has("launch.min_machines")) return kMostProcesses;
  return launch.num_processes - (launch.num_machines - 1);
}

/// torchrun's value of --tee: one number for all local ranks, or LOCAL_RANK:NUMBER,... A local rank that this
/// machine does not have, but another one may have, is left out.
std::vector<int> shown_streams(const std::string& tee, const Settings& settings, const LaunchConfig& launch) {
  constexpr int kMost = 3;
  const int local_ranks = launch.local_processes;
  const int most_ranks = most_local_ranks(settings, launch);
  const auto number = [&](std::string_view text, int most) {
    const int value = parse_int(text).value_or(-1);
    if (value < 0 || value > most) {
      throw Error(ErrorKind::kUsage, fmt::format("{}'launch.tee' is '{}'", settings.where("launch.tee"), tee))
          .hint(
              fmt::format("0, 1 (stdout), 2 (stderr) or 3 (both), or LOCAL_RANK:NUMBER,... with local ranks "
                          "up to {}",
                          most_ranks - 1));
    }
    return value;
  };
  if (tee.find(':') == std::string::npos) return std::vector<int>(local_ranks, number(tee, kMost));
  std::vector<int> streams(local_ranks, -1);
  for (const std::string& part : split(tee, ',')) {
    const std::string_view text = part;
    const std::size_t colon = std::min(text.find(':'), text.size());
    const int rank = number(text.substr(0, colon), most_ranks - 1);
    const int shown = number(text.substr(std::min(colon + 1, text.size())), kMost);
    if (rank < local_ranks) streams[rank] = shown;
  }
  return streams;
}

/// Whether one process runs whatever num_processes says, as with Accelerate. A plan for several processes
/// that a flag asks for is no such run.
bool runs_one_process(const Settings& settings, const ConfigRequest& request, int machines) {
  if (settings.get<std::string>("distributed_type") != "NO" || machines > 1) return false;
  const Setting* processes = settings.find("num_processes");
  return !request.only_plans || processes == nullptr || processes->origin.layer != Origin::Layer::kFlag;
}

/// The ranks on all machines. `usable_gpus` are those of this machine; the others are taken to have as many.
int processes(const Settings& settings, const ConfigRequest& request, bool use_cpu, std::size_t usable_gpus,
              int machines) {
  const auto wanted = settings.get<std::int64_t>("num_processes");
  if (wanted && *wanted != -1) {
    if (*wanted < 1 || *wanted > kMostProcesses) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("{}'num_processes' must be from 1 to {}, or -1 for one per GPU, found {}",
                              settings.where("num_processes"), kMostProcesses, *wanted));
    }
    return runs_one_process(settings, request, machines) ? 1 : static_cast<int>(*wanted);
  }
  if (use_cpu || usable_gpus == 0 || settings.get<std::string>("distributed_type") == "NO") return machines;
  return static_cast<int>(usable_gpus) * machines;
}

/// The id is compared with those of other launchers, and shown in messages.
void check_run_id(const Settings& settings, const LaunchConfig& launch) {
  constexpr std::size_t kMost = 256;
  if (launch.run_id.size() <= kMost) return;
  throw Error(ErrorKind::kUsage, fmt::format("{}'launch.run_id' has {} bytes, and at most {} are allowed",
                                             settings.where("launch.run_id"), launch.run_id.size(), kMost));
}

void resolve_machines(const Settings& settings, bool only_plans, LaunchConfig& launch) {
  if (launch.machine_rank >= launch.num_machines) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'machine_rank' is {}, and there are {} machines, from 0",
                            settings.where("machine_rank"), launch.machine_rank, launch.num_machines));
  }
  // Some files have an empty text for no address.
  auto address = settings.get<std::string>("main_process_ip");
  if (address && address->empty()) address.reset();
  launch.main_process_ip = address.value_or(launch.main_process_ip);
  launch.main_process_port = static_cast<int>(
      settings.get<std::int64_t>("main_process_port").value_or(launch.num_machines == 1 ? 0 : 29500));
  check_run_id(settings, launch);
  launch.min_machines =
      static_cast<int>(settings.get<std::int64_t>("launch.min_machines").value_or(launch.num_machines));
  if (launch.num_machines == 1 || only_plans) return;
  if (launch.min_machines > launch.num_machines) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'launch.min_machines' is {}, and there are {} machines",
                            settings.where("launch.min_machines"), launch.min_machines, launch.num_machines));
  }
  if (!address) {
    throw Error(ErrorKind::kUsage, fmt::format("{}{} machines need main_process_ip, the address of machine 0",
                                               settings.where("num_machines"), launch.num_machines));
  }
  if (launch.main_process_port == 0) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{}'main_process_port: 0' takes a free port, which the other machines do not know",
                    settings.where("main_process_port")));
  }
  if (launch.store_port == launch.main_process_port) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{}'launch.store_port' is {}, which is main_process_port, where the launchers meet",
                    settings.where("launch.store_port"), launch.store_port));
  }
}

/// A machine that is only cut off ends its ranks within the grace period. Until then they may write into the
/// files of the run, so the others must not begin again without it before that.
void check_last_call(const Settings& settings, const LaunchConfig& launch) {
  if (launch.min_machines >= launch.num_machines || launch.last_call_timeout_s >= launch.grace_period_s)
    return;
  throw Error(ErrorKind::kUsage,
              fmt::format("{}'launch.last_call_timeout' is {:g} s, which is shorter than launch.grace_period "
                          "({:g} s)",
                          settings.where("launch.last_call_timeout"), launch.last_call_timeout_s,
                          launch.grace_period_s))
      .hint(
          "a machine that is cut off needs the grace period to end its ranks, which write into the same "
          "files");
}

/// The ranks of this machine.
int local_processes(const Settings& settings, const LaunchConfig& launch) {
  const auto wanted = settings.get<std::int64_t>("launch.local_processes");
  const int all = launch.num_processes;
  if (wanted) {
    const bool fits = launch.num_machines == 1 ? *wanted == all : *wanted <= all - (launch.num_machines - 1);
    if (fits) return static_cast<int>(*wanted);
    throw Error(
        ErrorKind::kUsage,
        fmt::format(
            "{}'launch.local_processes' is {}, and num_processes, the ranks of all {} machines, is {}",
            settings.where("launch.local_processes"), *wanted, launch.num_machines, all));
  }
  if (all % launch.num_machines == 0) return all / launch.num_machines;
  throw Error(ErrorKind::kUsage, fmt::format("{}{} ranks on {} machines are not as many on each",
                                             settings.where("num_processes"), all, launch.num_machines))
      .hint(
          "num_processes counts the ranks of all machines; launch.local_processes says how many this one "
          "has");
}

}  // namespace

void resolve_launch(LaunchConfig& launch, const Settings& settings, const ConfigRequest& request) {
  const bool cpu_only = settings.get<std::string>("distributed_type") == "MULTI_CPU";
  // A plan for a machine with GPUs is often made on another machine.
  const bool must_run = !request.runs_program && !request.only_plans;
  launch.use_cpu = cpu_only || settings.get<bool>("use_cpu").value_or(false) ||
                   (request.visible_gpus == 0 && !request.only_plans);

  std::vector<int> gpus;
  if (!launch.use_cpu) {
    gpus = named_gpus(settings, request.only_plans ? std::numeric_limits<int>::max() : request.visible_gpus);
    if (gpus.empty()) {
      gpus.resize(static_cast<std::size_t>(request.visible_gpus));
      std::iota(gpus.begin(), gpus.end(), 0);
    }
  }
  resolve_machines(settings, request.only_plans, launch);
  launch.num_processes = processes(settings, request, launch.use_cpu, gpus.size(), launch.num_machines);
  launch.local_processes = local_processes(settings, launch);
  const auto local_ranks = static_cast<std::size_t>(launch.local_processes);
  // Ranks with Gloo can share a GPU.
  const bool too_many = local_ranks > gpus.size() && launch.backend != Backend::kGloo;
  if (!launch.use_cpu && too_many && must_run) {
    throw Error(ErrorKind::kUsage, fmt::format("{}{} processes are asked for, but {} GPUs are usable here",
                                               settings.where("num_processes"), local_ranks, gpus.size()))
        .hint(
            "lower num_processes, run on the CPU with use_cpu: true or --cpu, or let ranks share a GPU with "
            "launch.backend: gloo, which is slow");
  }
  // A rank of a program may use several GPUs.
  if (gpus.size() > local_ranks && !request.runs_program) gpus.resize(local_ranks);
  launch.gpu_ids = std::move(gpus);

  if (launch.backend == Backend::kShm && launch.num_machines > 1) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'launch.backend: shm' is for one machine, and there are {}",
                                               settings.where("launch.backend"), launch.num_machines))
        .hint("leave it out: ranks of one machine share memory, and machines use Gloo");
  }
  if (launch.backend == Backend::kNccl && launch.use_cpu && must_run) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'launch.backend: nccl' needs GPUs, and this run has none",
                                               settings.where("launch.backend")));
  }
  if (launch.backend == Backend::kShm && !launch.use_cpu && !request.runs_program) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'launch.backend: shm' is for CPU ranks, and this run has GPUs",
                            settings.where("launch.backend")))
        .hint("use launch.backend: nccl, or run on the CPU with use_cpu: true or --cpu");
  }
  if (const auto tee = settings.get<std::string>("launch.tee"); tee && *tee != "0")
    launch.tee = shown_streams(*tee, settings, launch);
  check_last_call(settings, launch);
  launch.log_max_bytes = log_max_bytes(settings);
}

DistributedType resolve_distributed_type(const Settings& settings, const ConfigRequest& request,
                                         const LaunchConfig& launch) {
  const auto name = settings.get<std::string>("distributed_type");
  const bool several = launch.num_processes > 1;
  if (!name) {
    if (settings.has("fsdp_config")) return DistributedType::kFsdp;
    if (!several) return DistributedType::kNo;
    return launch.use_cpu ? DistributedType::kMultiCpu : DistributedType::kMultiGpu;
  }
  const DistributedType type = *enum_named<DistributedType>(*name);
  if (type == DistributedType::kNo && several) {
    const bool by_machines = launch.num_machines > 1;
    throw Error(ErrorKind::kUsage, fmt::format("{}'distributed_type: NO' runs one process, but {} is {}",
                                               settings.where("distributed_type"),
                                               by_machines ? "num_machines" : "num_processes",
                                               by_machines ? launch.num_machines : launch.num_processes))
        .hint("set distributed_type to FSDP, MULTI_GPU or MULTI_CPU for several processes");
  }
  const bool on_cpu_by_choice = settings.get<bool>("use_cpu").value_or(false);
  if (type == DistributedType::kMultiGpu && launch.use_cpu && !on_cpu_by_choice && !request.runs_program) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'distributed_type: MULTI_GPU', but no GPU is visible here",
                                               settings.where("distributed_type")))
        .hint("use_cpu: true runs on the CPU");
  }
  return type;
}

/// What Accelerate does with FSDP on CPUs, where it has DistributedDataParallel alone. Its plugin for version
/// 1 asks for a GPU if it is to broadcast the values of rank 0, as both settings say by default.
std::string warning_of_program_on_cpu(const Settings& settings) {
  const bool broadcasts = settings.get<bool>("fsdp_config.sync_module_states").value_or(true) ||
                          settings.get<bool>("fsdp_config.cpu_ram_efficient_loading").value_or(true);
  if (settings.get<std::int64_t>("fsdp_config.version").value_or(1) == 1 && broadcasts) {
    return "on CPUs a program that uses Accelerate fails with FSDP 1 ('no available devices found'): set "
           "fsdp_config.fsdp_version: 2, with which Accelerate makes DistributedDataParallel of it; a "
           "training section shards on CPUs, too";
  }
  return "on CPUs Accelerate makes DistributedDataParallel of FSDP: a program that uses it will not shard "
         "its model; a training section shards on CPUs, too";
}

void warn_of_launch(const Config& config, const Settings& settings, const ConfigRequest& request,
                    std::vector<std::string>& warnings) {
  static constexpr std::string_view kInterval = "launch.monitor_interval";
  if (settings.has(kInterval)) {
    warnings.push_back(fmt::format("{}'{}' has no effect: the launcher sees at once when a rank ends",
                                   settings.where(kInterval), kInterval));
  }
  static constexpr std::string_view kProcesses = "num_processes";
  const std::int64_t wanted = settings.get<std::int64_t>(kProcesses).value_or(1);
  if (config.distributed_type == DistributedType::kNo && wanted > 1) {
    warnings.push_back(fmt::format(
        "{}'num_processes: {}' has no effect: 'distributed_type: NO' runs one process; FSDP, MULTI_GPU and "
        "MULTI_CPU run several",
        settings.where(kProcesses), wanted));
  }
  const bool on_cpu_by_choice = settings.get<bool>("use_cpu").value_or(false);
  if (config.distributed_type == DistributedType::kFsdp && config.launch.use_cpu && !on_cpu_by_choice &&
      !request.runs_program) {
    const bool by_name = settings.has("distributed_type");
    warnings.push_back(
        fmt::format("{}FSDP, but no GPU is visible here: training on the CPU; use_cpu: true, or --cpu, says "
                    "that this is meant",
                    settings.where(by_name ? "distributed_type" : "fsdp_config")));
  }
  if (!request.runs_program || !config.launch.use_cpu) return;
  const bool is_for_gpus = config.distributed_type == DistributedType::kFsdp ||
                           config.distributed_type == DistributedType::kMultiGpu;
  if (is_for_gpus && !on_cpu_by_choice && config.launch.num_processes > 1) {
    warnings.push_back(
        fmt::format("on CPUs Accelerate makes a run of its own of each of the {} processes, since no GPU is "
                    "visible here; with use_cpu: true, or --cpu, they train together",
                    config.launch.num_processes));
  } else if (config.distributed_type == DistributedType::kFsdp) {
    warnings.push_back(warning_of_program_on_cpu(settings));
  }
}

}  // namespace accel::config
