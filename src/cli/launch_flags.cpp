#include "cli/launch_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <span>

#include "base/text.hpp"
#include "core/config/schema/schema.hpp"

#include "core/config/settings/settings.hpp"
#include "core/launch/world/machine.hpp"

namespace accel::cli {
namespace {

/// A flag that sets one value of the configuration.
struct ValueFlag {
  const char* name;
  const char* path;
  const char* type;
  const char* help;
};

constexpr std::array kFlags = {
    ValueFlag{"--num-processes", "num_processes", "N", "Number of ranks (one per visible GPU, else 1)"},
    ValueFlag{"--mixed-precision", "mixed_precision", "MODE", "no, fp16 or bf16"},
    ValueFlag{"--main-process-ip", "main_process_ip", "IP", "Address of rank 0"},
    ValueFlag{"--main-process-port", "main_process_port", "PORT",
              "Port of rank 0's store (a free one), or where machines meet (29500)"},
    ValueFlag{"--gpu-ids", "gpu_ids", "LIST", "GPUs to use: all, or numbers separated by commas"},
    ValueFlag{"--num-machines", "num_machines", "N", "Number of machines (1)"},
    ValueFlag{"--machine-rank", "machine_rank", "N", "Rank of this machine (0)"},
    ValueFlag{"--run-id", "launch.run_id", "ID",
              "What the launchers of one run have in common (the job's id)"},
    ValueFlag{"--log-dir", "launch.log_dir", "DIR", "Directory for the output of the ranks"},
    ValueFlag{"--tee", "launch.tee", "WHICH",
              "Output to show: 1 stdout, 2 stderr, 3 both of all ranks, or RANK:N,..."},
    ValueFlag{"--hang-timeout", "launch.hang_timeout", "SECONDS",
              "End a run that makes no progress for this time (0: never)"},
    ValueFlag{"--max-restarts", "launch.max_restarts", "N", "Restarts of all ranks after a failure (0)"},
    ValueFlag{"--monitor-interval", "launch.monitor_interval", "SECONDS",
              "Has no effect: the end of a rank is seen at once"},
};

/// The supported keys of the configuration, each with the "=" that follows it.
std::vector<std::string> keys_to_set() {
  std::vector<std::string> keys;
  for (const std::span<const config::Field> fields :
       {config::accelerate_fields(), config::training_fields()}) {
    for (const config::Field& field : fields) {
      if (field.built != config::kNothing) keys.push_back(std::string(field.path) + "=");
    }
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace

void LaunchFlags::add_to(Command& command) {
  static_assert(kFlags.size() == kValueFlags);
  command.texts("--set", "KEY=VALUE", assignments_, "Set a value of the configuration; may be repeated");
  for (std::size_t i = 0; i < kFlags.size(); ++i)
    command.text(kFlags[i].name, kFlags[i].type, values_[i], kFlags[i].help);
  command.offer("--set", keys_to_set());
  command.offer("--mixed-precision", split(config::find_field("mixed_precision")->built, '|'));
  command.flag("--cpu,--use-cpu", cpu_, "Run on the CPU");
}

std::vector<config::Settings> LaunchFlags::settings() const {
  std::vector<config::Settings> settings;
  for (const std::string& assignment : assignments_)
    settings.push_back(config::settings_from_assignment(assignment));
  for (std::size_t i = 0; i < kFlags.size(); ++i) {
    const std::optional<std::string>& value = values_[i];
    if (!value) continue;
    const std::string shown = fmt::format("{} {}", kFlags[i].name, *value);
    settings.push_back(config::settings_from_flag(kFlags[i].path, *value, shown));
  }
  if (cpu_) settings.push_back(config::settings_from_flag("use_cpu", "true", "--cpu"));
  return settings;
}

config::ConfigRequest LaunchFlags::request(const std::string& file) const {
  config::ConfigRequest request;
  request.file = file;
  request.environment = environment_variable;
  request.visible_gpus = launch::visible_gpus(environment_variable);
  request.flags = settings();
  return request;
}

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace accel::cli
