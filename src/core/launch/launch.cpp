#include "core/launch/launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/atomic_file.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "base/leftover.hpp"
#include "base/log.hpp"
#include "core/launch/agent/report.hpp"
#include "core/launch/agent/scratch.hpp"
#include "core/launch/agent/supervisor.hpp"
#include "core/launch/world/address.hpp"
#include "core/launch/world/environment.hpp"
#include "core/launch/world/machine.hpp"

namespace accel::core {
namespace {

std::string new_run_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return fmt::format("accel-{:08x}-{:016x}", ::getpid(), now);
}

/// The port for rank 0's store: the configured one, or a free one if that is 0 or taken.
int choose_port(const LoadedConfig& loaded) {
  const int wanted = loaded.config.launch.main_process_port;
  if (wanted != 0 && port_is_free(wanted)) return wanted;
  const int port = free_port();
  const Setting* asked = loaded.settings.find("main_process_port");
  if (wanted == 0) {
    log::debug(fmt::format("using port {}", port));
  } else if (asked != nullptr) {
    log::warn(fmt::format("{}: port {} is in use; using {}", text_of(asked->origin), wanted, port));
  } else {
    log::info(fmt::format("port {} is in use; using {}", wanted, port));
  }
  return port;
}

std::filesystem::path log_root(const Config& config) {
  if (!config.launch.log_dir.empty()) return config.launch.log_dir;
  return config.training ? config.training->output_dir / "logs" : std::filesystem::path();
}

/// The directory that a training writes into, made if need be, and locked as long as the launcher lives (its
/// workers are killed if it is): another run would write over this one's logs and configuration, and take its
/// unfinished checkpoints for those of a dead one. Where the file system has no locks, nothing is told.
LeftoverLock lock_output(const std::filesystem::path& folder) {
  make_directories(folder);
  LeftoverLock lock(std::filesystem::canonical(folder));
  if (lock.state() == LeftoverLock::State::kTaken) {
    throw Error(ErrorKind::kUsage, fmt::format("another run is writing into '{}'", folder.string()))
        .hint("wait until it ends, or choose another output_dir");
  }
  return lock;
}

/// `work`, whose errors say which key is at fault, and where it was set.
template <class Work>
auto blamed_on(std::string_view key, const LoadedConfig& loaded, const Work& work) {
  try {
    return work();
  } catch (Error& error) {
    error.add_context(fmt::format("{}'{}'", loaded.settings.where(key), key));
    throw;
  }
}

/// A run starts its metrics anew; those of an earlier run must not be lost by it.
void refuse_earlier_metrics(const LoadedConfig& loaded) {
  static constexpr std::string_view kKey = "training.output_dir";
  const std::filesystem::path file = loaded.config.training->output_dir / "metrics.jsonl";
  std::error_code error;
  const bool is_there = std::filesystem::exists(std::filesystem::status(file, error));
  const bool is_regular = std::filesystem::is_regular_file(file, error);
  if (!is_there || (is_regular && std::filesystem::file_size(file, error) == 0)) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("{}'{}': '{}' {}", loaded.settings.where(kKey), kKey, file.string(),
                          is_regular ? "holds the metrics of an earlier run" : "is not a regular file"))
      .hint("choose another output_dir, or move that file away");
}

/// rank 0 hosts its store on this machine, and all ranks connect to it by this name.
void check_main_process_ip(const LoadedConfig& loaded) {
  static constexpr std::string_view kKey = "main_process_ip";
  try {
    check_own_address(loaded.config.launch.main_process_ip);
  } catch (Error& error) {
    error.add_context(fmt::format("{}'{}'", loaded.settings.where(kKey), kKey));
    throw std::move(error).hint("on one machine leave it out: 127.0.0.1 is the default");
  }
}

/// Writes the file that every worker reads its configuration from, and returns its path.
std::filesystem::path write_resolved(const Config& config) {
  const std::filesystem::path& folder = config.training->output_dir;
  std::string text;
  try {
    text = config_to_json(config).dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kUsage, "the configuration holds text that is not UTF-8");
  }
  std::filesystem::path file = std::filesystem::absolute(folder / "config.resolved.json").lexically_normal();
  write_file_atomically(file, text);
  return file;
}

/// Like mkdir -p, without the syncs that durable data needs.
void make_log_directory(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw system_error("create", folder.string(), error.value());
}

LaunchPlan make_plan(const LaunchRequest& request, const World& world, const Variables& shared,
                     const std::filesystem::path& scratch) {
  LaunchPlan plan;
  plan.run_id = world.run_id;
  plan.grace_period_s = request.loaded.config.launch.grace_period_s;
  plan.scratch = scratch;
  const std::filesystem::path logs = log_root(request.loaded.config);
  for (int local_rank = 0; local_rank < world.local_ranks; ++local_rank) {
    WorkerPlan worker;
    worker.rank = world.machine_rank * world.local_ranks + local_rank;
    worker.error_file = scratch / fmt::format("rank_{}_error.json", worker.rank);
    if (!logs.empty()) {
      worker.log_dir = logs / "attempt_0" / fmt::format("rank_{}", worker.rank);
      const bool is_set = !request.loaded.config.launch.log_dir.empty();
      blamed_on(is_set ? "launch.log_dir" : "training.output_dir", request.loaded,
                [&] { make_log_directory(worker.log_dir); });
    }
    worker.variables = torchrun_variables(world, local_rank, worker.error_file);
    worker.variables.insert(shared.begin(), shared.end());
    plan.workers.push_back(std::move(worker));
  }
  return plan;
}

/// What is wrong with the run; absent if nothing is.
std::optional<Error> failure_of(const GroupOutcome& group) {
  switch (exit_code_of_group(group)) {
    case ExitCode::kSuccess:
    case ExitCode::kPreempted:
      return std::nullopt;
    case ExitCode::kInterrupted:
      return Error(ErrorKind::kInterrupted, "interrupted by SIGINT");
    case ExitCode::kTerminated:
      return Error(ErrorKind::kTerminated, "ended by SIGTERM");
    default:
      break;
  }
  const WorkerOutcome* cause = root_cause(group);
  // None failed by itself only when the group was stopped because one had been preempted and others did not
  // follow.
  if (cause == nullptr)
    return Error(ErrorKind::kWorker, "some ranks stopped for preemption and others did not");
  return Error(ErrorKind::kWorker, failure_report(group, *cause, host_name()));
}

/// Ends this process with `code` in a second, if it still runs then: whoever has interrupted the run does not
/// wait until somebody reads the last message.
void leave_soon(ExitCode code) {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t* info, void*) { ::_exit(info->si_value.sival_int); };
  ::sigaction(SIGALRM, &action, nullptr);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGALRM;
  event.sigev_value.sival_int = to_int(code);
  timer_t timer{};
  const itimerspec in_a_second{{}, {1, 0}};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) ::timer_settime(timer, 0, &in_a_second, nullptr);
}

}  // namespace

ExitCode launch(LaunchRequest request, const Environment& environment) {
  LoadedConfig& loaded = request.loaded;
  LaunchConfig& config = loaded.config.launch;
  const bool trains = request.program.empty();
  // A reader of the output that goes away must not end the launcher, not even where it says why it ends.
  ::signal(SIGPIPE, SIG_IGN);

  LaunchPlan plan;
  std::vector<std::string> command = request.program;
  if (trains) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    command = {blamed_on("launch.worker", loaded,
                         [&] { return find_worker(self, config.worker, environment).string(); })};
  } else {
    command[0] = find_program(command[0], environment).string();
  }
  check_main_process_ip(loaded);
  config.main_process_port = choose_port(loaded);

  std::optional<LeftoverLock> lock;
  if (trains) {
    lock = blamed_on("training.output_dir", loaded,
                     [&] { return lock_output(loaded.config.training->output_dir); });
    refuse_earlier_metrics(loaded);
  }
  Variables shared = machine_variables(loaded, physical_cores(), environment);
  if (trains) {
    shared["ACCEL_CONFIG_FILE"] = write_resolved(loaded.config).string();
    shared.merge(worker_variables(environment));
  } else {
    shared.merge(accelerate_variables(loaded));
    // Python holds back what it prints into a pipe, and loses it when it is killed.
    if (!environment("PYTHONUNBUFFERED")) shared.emplace("PYTHONUNBUFFERED", "1");
  }

  const std::string temporary = environment("TMPDIR").value_or("");
  // Programs that change their directory find their error files all the same.
  std::optional<Scratch> scratch(std::in_place, temporary.empty() ? std::filesystem::path("/tmp")
                                                                  : std::filesystem::absolute(temporary));
  const World world{config.num_processes, config.num_processes,   config.machine_rank,
                    config.num_machines,  config.main_process_ip, config.main_process_port,
                    new_run_id()};
  plan = make_plan(request, world, shared, scratch->path());
  plan.command = std::move(command);
  const GroupOutcome group = supervise(plan, STDOUT_FILENO, STDERR_FILENO);
  const ExitCode code = exit_code_of_group(group);
  std::optional<Error> failure = failure_of(group);
  scratch.reset();
  if (group.interrupted_by != 0) leave_soon(code);
  if (failure) throw *std::move(failure);
  if (code == ExitCode::kPreempted) log::info("stopped for preemption, after saving");
  return code;
}

}  // namespace accel::core
