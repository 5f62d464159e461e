#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "base/error.hpp"
#include "core/config/config.hpp"
#include "core/config/names.hpp"

namespace accel::config {
namespace {

using nlohmann::json;

// Each struct is described once, by a function that shows each of its fields to a visitor. One visitor writes
// JSON, the other reads it, so every field that is written is also read.

template <class Visitor, class T>
void visit_fields(Visitor& v, T& config);

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

template <class T>
constexpr bool is_sequence = false;
template <class T>
constexpr bool is_sequence<std::vector<T>> = true;
template <class T, std::size_t N>
constexpr bool is_sequence<std::array<T, N>> = true;

template <class T>
constexpr bool is_leaf = std::is_arithmetic_v<T> || std::is_same_v<T, std::string>;

template <class T>
json to_json_value(const T& value);

class Writer {
 public:
  template <class T>
  void operator()(const char* name, const T& value) {
    document_[name] = to_json_value(value);
  }
  [[nodiscard]] json take() { return std::move(document_); }

 private:
  json document_ = json::object();
};

template <class T>
json to_json_value(const T& value) {
  if constexpr (is_optional<T>) {
    return value ? to_json_value(*value) : json(nullptr);
  } else if constexpr (is_sequence<T>) {
    json list = json::array();
    for (const auto& item : value) list.push_back(to_json_value(item));
    return list;
  } else if constexpr (std::is_enum_v<T>) {
    return name_of(value);
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return value.string();
  } else if constexpr (is_leaf<T>) {
    return value;
  } else {
    Writer writer;
    visit_fields(writer, value);
    return writer.take();
  }
}

[[noreturn]] void fail(const std::string& where, std::string_view found) {
  throw Error(ErrorKind::kUsage, fmt::format("resolved configuration: '{}': {}", where, found))
      .hint("config.resolved.json is written by `accel launch`; do not edit it");
}

template <class T>
void from_json_value(const json& document, const std::string& where, T& value);

/// Reads the fields of one object. finish() rejects a key that no field has.
class Reader {
 public:
  Reader(const json& document, std::string where) : document_(document), where_(std::move(where)) {
    if (!document.is_object())
      fail(where_, fmt::format("expected an object, found {}", document.type_name()));
  }

  template <class T>
  void operator()(const char* name, T& value) {
    const auto found = document_.find(name);
    if (found == document_.end()) fail(path_of(name), "is missing");
    from_json_value(*found, path_of(name), value);
    known_.insert(name);
  }

  void finish() const {
    for (const auto& [name, value] : document_.items()) {
      if (!known_.contains(name)) fail(path_of(name), "is not known");
    }
  }

 private:
  [[nodiscard]] std::string path_of(std::string_view name) const {
    return where_.empty() ? std::string(name) : fmt::format("{}.{}", where_, name);
  }

  const json& document_;
  std::string where_;
  std::set<std::string> known_;
};

template <class T>
void read_integer(const json& document, const std::string& where, T& value) {
  if (!document.is_number_integer())
    fail(where, fmt::format("expected an integer, found {}", document.dump()));
  const bool fits = document.is_number_unsigned() ? std::in_range<T>(document.get<std::uint64_t>())
                                                  : std::in_range<T>(document.get<std::int64_t>());
  if (!fits) fail(where, fmt::format("{} is out of range", document.dump()));
  value = document.get<T>();
}

template <class T>
void read_sequence(const json& document, const std::string& where, T& value) {
  if (!document.is_array()) fail(where, fmt::format("expected an array, found {}", document.type_name()));
  if constexpr (requires { value.resize(0); }) {
    value.resize(document.size());
  } else if (document.size() != value.size()) {
    fail(where, fmt::format("expected {} items, found {}", value.size(), document.size()));
  }
  for (std::size_t i = 0; i < document.size(); ++i) {
    from_json_value(document[i], fmt::format("{}[{}]", where, i), value[i]);
  }
}

template <class T>
void from_json_value(const json& document, const std::string& where, T& value) {
  if constexpr (is_optional<T>) {
    value.reset();
    if (!document.is_null()) from_json_value(document, where, value.emplace());
  } else if constexpr (is_sequence<T>) {
    read_sequence(document, where, value);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!document.is_boolean()) fail(where, fmt::format("expected true or false, found {}", document.dump()));
    value = document.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    read_integer(document, where, value);
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!document.is_number()) fail(where, fmt::format("expected a number, found {}", document.dump()));
    value = document.get<T>();
  } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, std::string> ||
                       std::is_same_v<T, std::filesystem::path>) {
    if (!document.is_string()) fail(where, fmt::format("expected a string, found {}", document.dump()));
    const auto text = document.get<std::string>();
    if constexpr (std::is_enum_v<T>) {
      const std::optional<T> named = enum_named<T>(text);
      if (!named) fail(where, fmt::format("'{}' is not known", text));
      value = *named;
    } else {
      value = text;
    }
  } else {
    Reader reader(document, where);
    visit_fields(reader, value);
    reader.finish();
  }
}

/// The description of each struct. `T` is const when writing.
template <class Visitor, class T>
void visit_fields(Visitor& v, T& c) {
  using Struct = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Struct, Config>) {
    v("distributed_type", c.distributed_type);
    v("mixed_precision", c.mixed_precision);
    v("fsdp", c.fsdp);
    v("launch", c.launch);
    v("training", c.training);
  } else if constexpr (std::is_same_v<Struct, FsdpConfig>) {
    v("version", c.version);
    v("replicate_size", c.replicate_size);
    v("reshard_after_forward", c.reshard_after_forward);
    v("reshard_size", c.reshard_size);
    v("forward_prefetch", c.forward_prefetch);
    v("backward_prefetch", c.backward_prefetch);
    v("activation_checkpointing", c.activation_checkpointing);
    v("activation_offload", c.activation_offload);
    v("offload_params", c.offload_params);
    v("auto_wrap_policy", c.auto_wrap_policy);
    v("min_num_params", c.min_num_params);
    v("transformer_layer_cls_to_wrap", c.transformer_layer_cls_to_wrap);
    v("wrap_origin", c.wrap_origin);
    v("ignored_modules", c.ignored_modules);
    v("ignored_origin", c.ignored_origin);
    v("precision", c.precision);
  } else if constexpr (std::is_same_v<Struct, LaunchConfig>) {
    v("num_processes", c.num_processes);
    v("num_machines", c.num_machines);
    v("machine_rank", c.machine_rank);
    v("local_processes", c.local_processes);
    v("main_process_ip", c.main_process_ip);
    v("main_process_port", c.main_process_port);
    v("run_id", c.run_id);
    v("store_port", c.store_port);
    v("rendezvous_timeout_s", c.rendezvous_timeout_s);
    v("min_machines", c.min_machines);
    v("last_call_timeout_s", c.last_call_timeout_s);
    v("heartbeat_timeout_s", c.heartbeat_timeout_s);
    v("lock_timeout_s", c.lock_timeout_s);
    v("use_cpu", c.use_cpu);
    v("binds_cpus", c.binds_cpus);
    v("gpu_ids", c.gpu_ids);
    v("backend", c.backend);
    v("max_restarts", c.max_restarts);
    v("hang_timeout_s", c.hang_timeout_s);
    v("tee", c.tee);
    v("grace_period_s", c.grace_period_s);
    v("collective_timeout_s", c.collective_timeout_s);
    v("log_dir", c.log_dir);
    v("log_max_bytes", c.log_max_bytes);
    v("log_files", c.log_files);
    v("worker", c.worker);
  } else if constexpr (std::is_same_v<Struct, TrainingConfig>) {
    v("model", c.model);
    v("data", c.data);
    v("optimizer", c.optimizer);
    v("lr_scheduler", c.lr_scheduler);
    v("max_steps", c.max_steps);
    v("gradient_accumulation_steps", c.gradient_accumulation_steps);
    v("max_grad_norm", c.max_grad_norm);
    v("grad_scaler", c.grad_scaler);
    v("ddp", c.ddp);
    v("skip_nonfinite", c.skip_nonfinite);
    v("eval_every", c.eval_every);
    v("log_every", c.log_every);
    v("seed", c.seed);
    v("output_dir", c.output_dir);
    v("checkpoint", c.checkpoint);
    v("profile", c.profile);
  } else if constexpr (std::is_same_v<Struct, ProfileConfig>) {
    v("first_step", c.first_step);
    v("last_step", c.last_step);
  } else if constexpr (std::is_same_v<Struct, PrecisionConfig>) {
    v("param_dtype", c.param_dtype);
    v("reduce_dtype", c.reduce_dtype);
    v("io_dtype", c.io_dtype);
    v("buffer_dtype", c.buffer_dtype);
    v("autocast_dtype", c.autocast_dtype);
  } else if constexpr (std::is_same_v<Struct, GradScalerConfig>) {
    v("init_scale", c.init_scale);
    v("growth_factor", c.growth_factor);
    v("backoff_factor", c.backoff_factor);
    v("growth_interval", c.growth_interval);
  } else if constexpr (std::is_same_v<Struct, DdpConfig>) {
    v("comm_hook", c.comm_hook);
    v("comm_wrapper", c.comm_wrapper);
    v("power_sgd", c.power_sgd);
  } else if constexpr (std::is_same_v<Struct, PowerSgdConfig>) {
    v("matrix_approximation_rank", c.matrix_approximation_rank);
    v("start_iter", c.start_iter);
    v("min_compression_rate", c.min_compression_rate);
    v("use_error_feedback", c.use_error_feedback);
    v("warm_start", c.warm_start);
    v("orthogonalization_epsilon", c.orthogonalization_epsilon);
    v("random_seed", c.random_seed);
  } else if constexpr (std::is_same_v<Struct, ModelConfig>) {
    v("path", c.path);
    v("weights", c.weights);
    v("rename", c.rename);
    v("broadcast_from_rank0", c.broadcast_from_rank0);
    v("init_std", c.init_std);
    v("inputs", c.inputs);
    v("loss", c.loss);
    v("targets", c.targets);
    v("output", c.output);
  } else if constexpr (std::is_same_v<Struct, Rename>) {
    v("pattern", c.pattern);
    v("replacement", c.replacement);
  } else if constexpr (std::is_same_v<Struct, DataConfig>) {
    v("train", c.train);
    v("eval", c.eval);
    v("batch_size", c.batch_size);
    v("shuffle", c.shuffle);
    v("drop_last", c.drop_last);
    v("check_labels", c.check_labels);
  } else if constexpr (std::is_same_v<Struct, DataSource>) {
    v("format", c.format);
    v("path", c.path);
    v("sequence_length", c.sequence_length);
    v("dtype", c.dtype);
  } else if constexpr (std::is_same_v<Struct, OptimizerConfig>) {
    v("type", c.type);
    v("lr", c.lr);
    v("betas", c.betas);
    v("eps", c.eps);
    v("weight_decay", c.weight_decay);
    v("no_decay", c.no_decay);
  } else if constexpr (std::is_same_v<Struct, SchedulerConfig>) {
    v("type", c.type);
    v("warmup_steps", c.warmup_steps);
    v("min_lr_ratio", c.min_lr_ratio);
    v("total_steps", c.total_steps);
  } else {
    static_assert(std::is_same_v<Struct, CheckpointConfig>);
    v("every", c.every);
    v("every_minutes", c.every_minutes);
    v("continuously", c.continuously);
    v("total_limit", c.total_limit);
    v("resume", c.resume);
    v("verify_on_resume", c.verify_on_resume);
    v("verify", c.verify);
    v("continues_on_failure", c.continues_on_failure);
    v("resume_from", c.resume_from);
    v("asynchronous", c.asynchronous);
    v("host_memory", c.host_memory);
    v("type", c.type);
    v("adapter_only", c.adapter_only);
    v("adapter_names", c.adapter_names);
    v("exports_safetensors", c.exports_safetensors);
  }
}

}  // namespace

json config_to_json(const Config& config) { return to_json_value(config); }

Config config_from_json(const json& document) {
  Config config;
  from_json_value(document, "", config);
  return config;
}

}  // namespace accel::config
