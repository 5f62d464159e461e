#include "core/config/resolve/resolved_values.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "core/config/keys/document.hpp"
#include "core/config/mesh.hpp"
#include "core/config/names.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

using nlohmann::json;

Value text_or_null(std::string text) { return text.empty() ? Value() : Value(std::move(text)); }

Value number(std::int64_t value) { return value; }

/// A key whose value is not in the resolved configuration as it is written.
struct ComputedValue {
  std::string_view path;
  /// Absent if the run does not use the key. A key of the engine is computed only for a training.
  std::optional<Value> (*value)(const LoadedConfig&);
};

constexpr auto kComputedValues = std::to_array<ComputedValue>({
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
       return number(mesh_of(loaded.config).size(Axis::kDpShard));
     }},
    {"parallelism_config.cp_size",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       return number(loaded.settings.get<std::int64_t>("parallelism_config.cp_size").value_or(1));
     }},
    {"launch.log_dir",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       return text_or_null(log_root(loaded.config).string());
     }},
    {"launch.tee",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       return loaded.settings.get<std::string>("launch.tee").value_or("0");
     }},
    {"training.epochs",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       const std::int64_t epochs = loaded.config.training->epochs;
       return epochs > 0 ? number(epochs) : Value();
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
    {"training.checkpoint.host_memory",
     [](const LoadedConfig& loaded) -> std::optional<Value> {
       const std::uint64_t bytes = loaded.config.training->checkpoint.host_memory;
       return bytes == 0 ? Value(std::string("auto")) : number(static_cast<std::int64_t>(bytes));
     }},
});

/// A value of the resolved configuration. An empty text stands for none, and so does an empty map.
Value value_of(const json& field, Type type) {
  if (field.is_boolean()) return field.get<bool>();
  if (field.is_number_integer()) return field.get<std::int64_t>();
  if (field.is_number()) return field.get<double>();
  if (field.is_string()) return text_or_null(field.get<std::string>());
  if (field.is_null()) return {};
  if (!field.empty() && field.front().is_number()) return field.get<std::vector<double>>();
  if (type == Type::kTexts) {
    if (field.empty()) return {};
    Texts texts;
    if (field.is_object()) {
      for (const auto& [name, text] : field.items()) texts.emplace_back(name, text.get<std::string>());
      return texts;
    }
    // The names of the two fields of an entry are in the order of what they are: a key and its value.
    for (const json& entry : field) {
      const json& value = std::next(entry.begin()).value();
      texts.emplace_back(entry.begin().value(), value.is_string() ? value.get<std::string>() : value.dump());
    }
    return texts;
  }
  if (type == Type::kSections) {
    std::vector<Texts> sections;
    for (const json& section : field) {
      Texts& texts = sections.emplace_back();
      for (const auto& [name, text] : section.items())
        texts.emplace_back(name, text.is_string() ? text.get<std::string>() : text.dump());
    }
    return sections.empty() ? Value() : Value(std::move(sections));
  }
  return field.get<std::vector<std::string>>();
}

/// Whether the run uses a key.
bool uses(const LoadedConfig& loaded, const Key& key) {
  const Config& config = loaded.config;
  if (!config.training) return key.has(kLauncher) || key.path == "mixed_precision";
  // Any training has checkpoints of this form.
  if (key.path == "fsdp_config.state_dict_type") return true;
  const bool replicates = config.distributed_type == DistributedType::kMultiCpu ||
                          config.distributed_type == DistributedType::kMultiGpu;
  if (is_below(key.path, "fsdp_config")) {
    const bool shards = config.distributed_type == DistributedType::kFsdp;
    return shards || (!replicates && loaded.settings.has("fsdp_config"));
  }
  if (is_below(key.path, "fp8_config") || is_below(key.path, "training.float8")) return config.has_float8();
  if (is_below(key.path, "dynamo_config")) return config.training->compile.is_on();
  if (is_below(key.path, "training.grad_scaler")) return config.mixed_precision == "fp16";
  if (is_below(key.path, "training.ddp.comm_state_option"))
    return config.training->ddp.comm_hook == CommHookType::kPowerSgd;
  if (is_below(key.path, "training.ddp")) return replicates;
  if (is_below(key.path, "training.data.eval")) return config.training->data.eval.has_value();
  // The options of other optimizers and schedules.
  if (is_below(key.path, "training.optimizer") || is_below(key.path, "training.lr_scheduler"))
    return key.idle.applies == nullptr || !key.idle.applies(config);
  return true;
}

/// The value that the run has for a key; absent if it does not use it.
std::optional<Value> resolved(const Key& key, const LoadedConfig& loaded) {
  if (!uses(loaded, key)) return std::nullopt;
  const auto has_path = [&](const auto& row) { return row.path == key.path; };
  const auto* const computed = std::find_if(kComputedValues.begin(), kComputedValues.end(), has_path);
  if (computed != kComputedValues.end()) return computed->value(loaded);
  if (key.member.reach != nullptr && key.member.reach(loaded.config) != nullptr)
    return value_of(resolved_value(key, loaded.config), key.type);
  if (key.built.empty()) return Value();
  const json only = default_of(key);
  return only.is_null() ? std::nullopt : std::optional(value_of(only, key.type));
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
  std::vector<ResolvedValue> values;
  const auto add = [&](const Key& key, std::optional<Value> value) {
    const Setting* setting = deciding(loaded.settings, key.path);
    const bool is_set = setting != nullptr && !std::holds_alternative<std::monostate>(setting->value);
    if (!value && !is_set) return;
    ResolvedValue row{std::string(key.path), value ? *std::move(value) : setting->value, {}, {}};
    if (setting != nullptr) row.origin = setting->origin;
    if (is_set && text_of(row.value) != text_of(setting->value)) row.written = text_of(setting->value);
    values.push_back(std::move(row));
  };
  for (const auto table : {run_keys(), training_keys()}) {
    for (const Key& key : table) add(key, resolved(key, loaded));
  }
  for (const Key& key : foreign_keys()) add(key, std::nullopt);
  return values;
}

}  // namespace accel::config
