#include "core/config/number_settings.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

namespace accel::config {
namespace {

using nlohmann::json;

/// The settings, and sections of them, that do not change the numbers of a training that goes on.
constexpr auto kWithoutNumbers = std::to_array<std::string_view>({
    // Where and how the ranks run. The backend decides about the order of sums.
    "launch.num_processes",
    "launch.num_machines",
    "launch.machine_rank",
    "launch.local_processes",
    "launch.main_process_ip",
    "launch.main_process_port",
    "launch.run_id",
    "launch.store_port",
    "launch.rendezvous_timeout_s",
    "launch.min_machines",
    "launch.last_call_timeout_s",
    "launch.heartbeat_timeout_s",
    "launch.lock_timeout_s",
    "launch.use_cpu",
    "launch.binds_cpus",
    "launch.gpu_ids",
    "launch.max_restarts",
    "launch.hang_timeout_s",
    "launch.tee",
    "launch.grace_period_s",
    "launch.collective_timeout_s",
    "launch.log_dir",
    "launch.log_max_bytes",
    "launch.log_files",
    "launch.worker",
    // When parameters are gathered and what is recomputed. The layout of the ranks is a setting of its own.
    "fsdp.replicate_size",
    "fsdp.reshard_after_forward",
    "fsdp.reshard_size",
    "fsdp.forward_prefetch",
    "fsdp.backward_prefetch",
    "fsdp.activation_checkpointing",
    "fsdp.activation_offload",
    "fsdp.wrap_origin",
    "fsdp.ignored_origin",
    // The weights come from the checkpoint, and the graph of the model has a fingerprint.
    "training.model.path",
    "training.model.weights",
    "training.model.rename",
    "training.model.broadcast_from_rank0",
    "training.model.init_std",
    // The contents of the data and the samples of a micro-batch over all ranks are compared.
    "training.data.train",
    "training.data.eval",
    "training.data.batch_size",
    "training.data.check_labels",
    // The length of the schedule is compared.
    "training.max_steps",
    "training.lr_scheduler.total_steps",
    "training.eval_every",
    "training.log_every",
    "training.output_dir",
    "training.checkpoint",
    "training.profile",
});

bool is_without_numbers(std::string_view key) {
  return std::find(kWithoutNumbers.begin(), kWithoutNumbers.end(), key) != kWithoutNumbers.end();
}

/// The key of the configuration file for the path of a value in config_to_json().
std::string key_of(const std::string& path) {
  for (const std::string_view prefix : {"fsdp.precision.", "fsdp."}) {
    if (path.starts_with(prefix)) return "fsdp_config." + path.substr(prefix.size());
  }
  return path;
}

/// Adds the values of a document by dotted keys. A list is one value.
void add_values(const json& document, const std::string& path, std::map<std::string, std::string>& settings) {
  if (is_without_numbers(path)) return;
  if (!document.is_object()) {
    settings[key_of(path)] = document.is_string() ? document.get<std::string>() : document.dump();
    return;
  }
  for (const auto& [name, value] : document.items())
    add_values(value, path.empty() ? name : path + "." + name, settings);
}

}  // namespace

std::map<std::string, std::string> number_settings(const Config& config) {
  std::map<std::string, std::string> settings;
  add_values(config_to_json(config), "", settings);
  return settings;
}

bool follows_mixed_precision(const std::string& key) {
  return key.starts_with("fsdp_config.") && key.ends_with("_dtype");
}

}  // namespace accel::config
