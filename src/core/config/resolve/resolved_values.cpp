#include "core/config/resolve/resolved_values.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "core/config/names.hpp"
#include "core/config/resolve/resolve.hpp"
#include "core/config/schema/schema.hpp"

namespace accel::config {
namespace {

using nlohmann::json;

/// A key whose value has another name in the resolved configuration (config_to_json).
struct Renamed {
  std::string_view path;
  const char* pointer;
};

constexpr auto kRenamed = std::to_array<Renamed>({
    {"use_cpu", "/launch/use_cpu"},
    {"num_processes", "/launch/num_processes"},
    {"machine_rank", "/launch/machine_rank"},
    {"num_machines", "/launch/num_machines"},
    {"gpu_ids", "/launch/gpu_ids"},
    {"main_process_ip", "/launch/main_process_ip"},
    {"main_process_port", "/launch/main_process_port"},
    {"enable_cpu_affinity", "/launch/binds_cpus"},
    {"fsdp_config.state_dict_type", "/training/checkpoint/type"},
    {"fsdp_config.activation_checkpointing_offload", "/fsdp/activation_offload"},
    {"parallelism_config.dp_replicate_size", "/fsdp/replicate_size"},
    {"launch.rendezvous_timeout", "/launch/rendezvous_timeout_s"},
    {"launch.last_call_timeout", "/launch/last_call_timeout_s"},
    {"launch.heartbeat_timeout", "/launch/heartbeat_timeout_s"},
    {"launch.lock_timeout", "/launch/lock_timeout_s"},
    {"launch.log_max_size", "/launch/log_max_bytes"},
    {"launch.grace_period", "/launch/grace_period_s"},
    {"launch.timeout", "/launch/collective_timeout_s"},
    {"launch.hang_timeout", "/launch/hang_timeout_s"},
    {"training.model.init.std", "/training/model/init_std"},
    {"training.ddp.comm_state_option.matrix_approximation_rank",
     "/training/ddp/power_sgd/matrix_approximation_rank"},
    {"training.ddp.comm_state_option.start_powerSGD_iter", "/training/ddp/power_sgd/start_iter"},
    {"training.ddp.comm_state_option.min_compression_rate", "/training/ddp/power_sgd/min_compression_rate"},
    {"training.ddp.comm_state_option.use_error_feedback", "/training/ddp/power_sgd/use_error_feedback"},
    {"training.ddp.comm_state_option.warm_start", "/training/ddp/power_sgd/warm_start"},
    {"training.ddp.comm_state_option.orthogonalization_epsilon",
     "/training/ddp/power_sgd/orthogonalization_epsilon"},
    {"training.ddp.comm_state_option.random_seed", "/training/ddp/power_sgd/random_seed"},
    {"training.checkpoint.async", "/training/checkpoint/asynchronous"},
});

Value text_or_null(std::string text) { return text.empty() ? Value() : Value(std::move(text)); }

Value number(std::int64_t value) { return value; }

/// A key whose value is not in the resolved configuration as it is written.
struct Computed {
  std::string_view path;
  /// Absent if the run does not use the key. A key of the engine is computed only for a training.
  std::optional<Value> (*value)(const LoadedConfig&);
};

constexpr auto kComputed = std::to_array<Computed>({
    {"fsdp_config.sharding_strategy",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       if (loaded.config.fsdp.version != 1) return std::nullopt;
       return std::string(strategy_name(loaded.settings).name);
     }},
    {"fsdp_config.reshard_after_forward",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       const FsdpConfig& fsdp = loaded.config.fsdp;
       return fsdp.reshard_size > 0 ? number(fsdp.reshard_size) : Value(fsdp.reshard_after_forward);
     }},
    {"fsdp_config.backward_prefetch",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       return std::string(loaded.config.fsdp.backward_prefetch ? "BACKWARD_PRE" : "NO_PREFETCH");
     }},
    {"fsdp_config.reduce_dtype",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       const std::string& dtype = loaded.config.fsdp.precision.reduce_dtype;
       if (dtype == "bfloat16") return std::string("bf16");
       if (dtype == "float16") return std::string("fp16");
       return dtype.empty() ? Value() : Value(std::string("fp32"));
     }},
    {"parallelism_config.dp_shard_size",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       return number(loaded.config.launch.num_processes / loaded.config.fsdp.replicate_size);
     }},
    {"launch.log_dir",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       return text_or_null(log_root(loaded.config).string());
     }},
    {"launch.tee",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       return loaded.settings.get<std::string>("launch.tee").value_or("0");
     }},
    {"training.model.rename",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       Texts texts;
       for (const Rename& rule : loaded.config.training->model.rename)
         texts.emplace_back(rule.pattern, rule.replacement);
       return texts.empty() ? Value() : Value(std::move(texts));
     }},
    {"training.lr_scheduler.total_steps",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       const TrainingConfig& training = *loaded.config.training;
       const std::int64_t steps = training.lr_scheduler.total_steps;
       return number(steps > 0 ? steps : training.max_steps);
     }},
    {"training.checkpoint.every",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       const CheckpointConfig& checkpoint = loaded.config.training->checkpoint;
       return checkpoint.continuously ? Value(std::string("continuous")) : number(checkpoint.every);
     }},
    {"training.checkpoint.on_failure",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       return std::string(loaded.config.training->checkpoint.continues_on_failure ? "continue" : "stop");
     }},
    {"training.checkpoint.host_memory",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       const std::uint64_t bytes = loaded.config.training->checkpoint.host_memory;
       return bytes == 0 ? Value(std::string("auto")) : number(static_cast<std::int64_t>(bytes));
     }},
    {"training.checkpoint.export",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       return std::string(loaded.config.training->checkpoint.exports_safetensors ? "safetensors" : "none");
     }},
    {"training.profile.steps",
     [](const LoadedConfig& loaded) -> std::
                                        optional<Value> {
                                          const std::optional<ProfileConfig>& profile =
                                              loaded.config.training->profile;
                                          if (!profile) return Value();
                                          return std::vector<double>{static_cast<double>(profile->first_step),
                                                                     static_cast<double>(profile->last_step)};
                                        }},
});

/// The value of one field of config_to_json(). An empty text stands for none.
Value value_of(const json& field) {
  if (field.is_boolean()) return field.get<bool>();
  if (field.is_number_integer()) return field.get<std::int64_t>();
  if (field.is_number()) return field.get<double>();
  if (field.is_string()) return text_or_null(field.get<std::string>());
  if (field.is_null()) return {};
  if (!field.empty() && field.front().is_number()) return field.get<std::vector<double>>();
  return field.get<std::vector<std::string>>();
}

/// The only value that accel supports for a field, which is therefore the default. A field without a
/// supported value has null. Absent if there are several.
std::optional<Value> only_value(const Field& field) {
  if (field.built.empty()) return Value();
  if (field.built == kEverything || field.built.find('|') != std::string_view::npos) return std::nullopt;
  if (field.type == Type::kBool) return field.built == "true";
  if (field.type == Type::kInt) return number(std::stoll(std::string(field.built)));
  return std::string(field.built);
}

/// Whether the run uses a key.
bool uses(const LoadedConfig& loaded, const Field& field) {
  const Config& config = loaded.config;
  if (!config.training) return field.reader == Reader::kLauncher || field.path == "mixed_precision";
  // Any training has checkpoints of this form.
  if (field.path == "fsdp_config.state_dict_type") return true;
  const bool replicates = config.distributed_type == DistributedType::kMultiCpu ||
                          config.distributed_type == DistributedType::kMultiGpu;
  if (is_below(field.path, "fsdp_config")) {
    const bool shards = config.distributed_type == DistributedType::kFsdp;
    return shards || (!replicates && loaded.settings.has("fsdp_config"));
  }
  if (is_below(field.path, "training.grad_scaler")) return config.mixed_precision == "fp16";
  if (is_below(field.path, "training.ddp.comm_state_option"))
    return config.training->ddp.comm_hook == CommHookType::kPowerSgd;
  if (is_below(field.path, "training.ddp")) return replicates;
  if (is_below(field.path, "training.data.eval")) return config.training->data.eval.has_value();
  return true;
}

/// The pointer in config_to_json() of a key that has the same name there.
std::string pointer_of(std::string_view path) {
  std::string pointer = is_below(path, "fsdp_config") ? "/fsdp" + std::string(path.substr(path.find('.')))
                                                      : "/" + std::string(path);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return pointer;
}

/// The value that the run has for a field; absent if it does not use it.
std::optional<Value> resolved(const Field& field, const LoadedConfig& loaded, const json& document) {
  if (!uses(loaded, field)) return std::nullopt;
  const auto has_path = [&](const auto& row) { return row.path == field.path; };
  const auto* const computed = std::find_if(kComputed.begin(), kComputed.end(), has_path);
  if (computed != kComputed.end()) return computed->value(loaded);
  const auto* const renamed = std::find_if(kRenamed.begin(), kRenamed.end(), has_path);
  const json::json_pointer pointer(renamed != kRenamed.end() ? renamed->pointer : pointer_of(field.path));
  if (document.contains(pointer)) return value_of(document.at(pointer));
  return only_value(field);
}

/// The setting that decides about `path`: its own, or a null of a section above.
const Setting* deciding(const Settings& settings, std::string_view path) {
  if (const Setting* own = settings.find(path)) return own;
  for (std::size_t dot = path.rfind('.'); dot != std::string_view::npos; dot = path.rfind('.', dot - 1)) {
    if (const Setting* above = settings.find(path.substr(0, dot))) return above;
  }
  return nullptr;
}

}  // namespace

std::vector<ResolvedValue> resolved_values(const LoadedConfig& loaded) {
  const json document = config_to_json(loaded.config);
  std::vector<ResolvedValue> values;
  const auto add = [&](const Field& field, std::optional<Value> value) {
    const Setting* setting = deciding(loaded.settings, field.path);
    const bool is_set = setting != nullptr && !std::holds_alternative<std::monostate>(setting->value);
    if (!value && !is_set) return;
    ResolvedValue row{std::string(field.path), value ? *std::move(value) : setting->value, {}, {}};
    if (setting != nullptr) row.origin = setting->origin;
    if (is_set && text_of(row.value) != text_of(setting->value)) row.written = text_of(setting->value);
    values.push_back(std::move(row));
  };
  for (const auto table : {accelerate_fields(), training_fields()}) {
    for (const Field& field : table) add(field, resolved(field, loaded, document));
  }
  for (const Field& field : foreign_fields()) add(field, std::nullopt);
  return values;
}

}  // namespace accel::config
