#include "train/worker.hpp"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/flight_record.hpp"
#include "base/files/json_text.hpp"
#include "base/host/process_state.hpp"
#include "base/log.hpp"
#include "base/stop_request.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "core/config/keys/document.hpp"
#include "train/c10d/group.hpp"
#include "train/crash_report.hpp"
#include "train/device/accelerator.hpp"
#include "train/device/large_tensors.hpp"
#include "train/device/matrix_products.hpp"
#include "train/graph/run/executor.hpp"
#include "train/loop/trainer.hpp"

namespace accel::train {
namespace {

/// Writes the error for the launcher, in the file and format that torchelastic uses.
void write_error_file(const Error& error, const std::string& backtrace) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  std::string message = visible_lines(error.message());
  if (!error.advice().empty()) message += "\nhint: " + visible(error.advice());
  const nlohmann::json document = {{"message",
                                    {{"message", message},
                                     {"extraInfo",
                                      {{"timestamp", now.count()},
                                       {"kind", name_of(error.kind())},
                                       {"cpp_backtrace", visible_lines(backtrace)}}}}}};
  std::ofstream(path) << document.dump() << '\n';
}

/// Reports an error. `backtrace` goes into the error file only: on the terminal it would hide the message.
ExitCode fail(const Error& error, const std::string& backtrace = {}) {
  // The file comes first: printing may block, and the rank whose file is the first is taken for the cause.
  write_error_file(error, backtrace);
  log::error(error.message());
  if (!error.advice().empty()) log::info("hint: " + error.advice());
  return exit_code_of(error.kind());
}

config::Config read_config() {
  const char* path = std::getenv("ACCEL_CONFIG_FILE");
  if (path == nullptr) {
    throw Error(ErrorKind::kUsage, "ACCEL_CONFIG_FILE is not set")
        .hint("accel-worker is started by `accel launch`, not by hand");
  }
  try {
    return config::config_from_json(parse_json(read_text_file(path)));
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is not a resolved configuration: {}", path,
                                               without_json_tag(error.what())));
  }
}

at::Device device_of(const config::Config& config, const Rank& rank) {
  if (config.launch.use_cpu || config.launch.gpu_ids.empty()) return at::kCPU;
  // With Gloo there may be more ranks than GPUs.
  const int gpu = rank.local_rank % static_cast<int>(config.launch.gpu_ids.size());
  return load_accelerator(gpu);
}

/// Logs the first line of a run: ranks, device and backend, which are easily other than intended.
void report_device(const config::Config& config, const Rank& rank, at::Device device, const Group& group) {
  const auto count = [](std::size_t number, const char* what) {
    return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
  };
  const std::string devices =
      !device.is_cpu() ? count(config.launch.gpu_ids.size(), "GPU") : std::string("the CPU");
  const std::string where = config.launch.num_machines == 1
                                ? devices
                                : fmt::format("{} machines, here on {}", config.launch.num_machines, devices);
  log::info(fmt::format("{} on {}, backend {}", count(static_cast<std::size_t>(rank.world_size), "rank"),
                        where, group.backend_name()));
}

/// Says that a run with the backend fake is a measurement, and refuses what would outlive it or would need
/// what only other ranks have.
void announce_fake(const config::Config& config) {
  if (config.launch.backend != config::Backend::kFake || !config.training) return;
  log::warn(
      "backend fake: THE OTHER RANKS DO NOT EXIST. This run measures one rank; "
      "its losses and weights are not real");
  const config::CheckpointConfig& checkpoint = config.training->checkpoint;
  if (checkpoint.enabled() || !checkpoint.resume_from.empty()) {
    throw Error(ErrorKind::kUsage, "with the backend fake no checkpoint is written or read")
        .hint("set training.checkpoint.every to 0, and training.checkpoint.resume to none");
  }
  if (config.training->model.broadcast_from_rank0) {
    throw Error(ErrorKind::kUsage, "with the backend fake there is no rank 0 that reads the weights")
        .hint("set training.model.broadcast_from_rank0 to false");
  }
}

/// Ends the process without destructors: libtorch's threads do not all end, and nothing is left to flush.
[[noreturn]] void leave(ExitCode code) {
  std::fflush(nullptr);
  std::_Exit(to_int(code));
}

/// Runs `work`, and reports what it throws.
template <class Work>
ExitCode reported(Work&& work) {
  try {
    work();
    return ExitCode::kSuccess;
  } catch (const c10::Error& error) {
    return fail(Error(ErrorKind::kFailure, error.what_without_backtrace()), error.what());
  } catch (const std::exception& error) {
    return fail(error_of(error));
  }
}

ExitCode run() {
  const Rank rank = Rank::from_environment();
  // The launcher writes the rank in front of the lines of all ranks but rank 0.
  log::init("", log::Level::kNormal, log::Color::kAuto);
  const config::Config config = read_config();
  announce_fake(config);
  flight::open();
  // Without checkpoints nothing is to be saved.
  if (!config.training || !config.training->checkpoint.enabled()) release_stop_signals();
  const at::Device device = device_of(config, rank);
  use_simple_executor();
  keep_memory_of_large_tensors();
  if (onednn_multiplies_faster()) multiply_with_onednn();
  if (config.training && config.training->tf32) allow_tf32(*config.training->tf32);
  const c10::OptionalDeviceGuard guard(!device.is_cpu() ? std::optional(device) : std::nullopt);
  const auto timeout = std::chrono::duration<double>(config.launch.collective_timeout_s);
  Group group = Group::connect(rank, config.launch.backend, device,
                               std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
  if (rank.rank == 0) report_device(config, rank, device, group);
  // An error is written while all groups still exist, and then the process ends without destroying them. The
  // other ranks fail when a group ends, and the launcher takes the error that was written first for the
  // cause. Destroying a group ends NCCL's communicators, which may take long.
  const auto guarded = [](const std::function<void()>& work) {
    if (const ExitCode code = reported(work); code != ExitCode::kSuccess) leave(code);
  };
  TrainingEnd end = TrainingEnd::kFinished;
  guarded([&] {
    end = train(config, rank, device, group, guarded);
    group.barrier();
    group.shut_down();
  });
  return end == TrainingEnd::kPreempted ? ExitCode::kPreempted : ExitCode::kSuccess;
}

}  // namespace

void run_worker() {
  // The launcher has blocked the stop signals until here, and they stay so.
  const sigset_t mask = stop_signals();
  reset_process_state(&mask);
  report_crashes();
  log::init("worker", log::Level::kNormal, log::Color::kAuto);
  ExitCode code = ExitCode::kFailure;
  const ExitCode before = reported([&] {
    catch_stop_signals();
    code = run();
  });
  if (before != ExitCode::kSuccess) code = before;
  leave(code);
}

}  // namespace accel::train
