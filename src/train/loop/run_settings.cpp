#include "train/loop/run_settings.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ckpt/store/run_state.hpp"

namespace accel::train {
namespace {

using nlohmann::json;

constexpr const char* kContents = "contents of training.data.train (CRC-32 of samples)";
/// Older checkpoints have this fingerprint alone.
constexpr const char* kOldContents = "contents of training.data.train (CRC-32 of some tokens)";

/// Adds the values of a document under dotted keys. A list is one value.
void add_values(const json& document, const std::string& key, std::map<std::string, std::string>& settings) {
  if (!document.is_object()) {
    settings[key] = document.is_string() ? document.get<std::string>() : document.dump();
    return;
  }
  for (const auto& [name, value] : document.items()) add_values(value, key + "." + name, settings);
}

std::string layout_of(const Mesh& mesh) {
  const std::string shards = fmt::format("{} {}", mesh.shards, mesh.shards == 1 ? "shard" : "shards");
  if (mesh.replicas == 1) return shards;
  const std::string replicas = fmt::format("{} replicas", mesh.replicas);
  return mesh.shards == 1 ? replicas : fmt::format("{} x {}", replicas, shards);
}

}  // namespace

std::map<std::string, std::string> settings_of(const config::Config& config, const Samples& data,
                                               const Mesh& mesh) {
  const json document = config::config_to_json(config);
  const json& training = document.at("training");
  std::map<std::string, std::string> settings;
  for (const char* key : {"distributed_type", "mixed_precision"}) add_values(document.at(key), key, settings);
  for (const char* key : {"optimizer", "lr_scheduler", "gradient_accumulation_steps", "max_grad_norm",
                          "grad_scaler", "ddp", "skip_nonfinite", "seed"})
    add_values(training.at(key), std::string("training.") + key, settings);
  const config::TrainingConfig& run = *config.training;
  // 0 stands for max_steps.
  settings["training.lr_scheduler.total_steps"] =
      std::to_string(run.lr_scheduler.total_steps > 0 ? run.lr_scheduler.total_steps : run.max_steps);
  settings["training.data.shuffle"] = run.data.shuffle ? "true" : "false";
  settings["training.data.drop_last"] = run.data.drop_last ? "true" : "false";
  settings["samples of a micro-batch over all ranks"] = std::to_string(run.data.batch_size * mesh.size());
  settings[kContents] = fmt::format("{:08x}", data.fingerprint());
  settings[kOldContents] = fmt::format("{:08x}", data.old_fingerprint());
  settings[ckpt::kLayoutSetting] = layout_of(mesh);
  settings["device"] = config.launch.use_cpu || config.launch.gpu_ids.empty() ? "CPU" : "GPU";
  return settings;
}

std::vector<std::string> changed_settings(const std::map<std::string, std::string>& before,
                                          const std::map<std::string, std::string>& now) {
  std::vector<std::string> changes;
  for (const auto& [key, value] : now) {
    const auto old = before.find(key);
    if (key == kOldContents && before.contains(kContents)) continue;
    if (old != before.end() && old->second != value)
      changes.push_back(fmt::format("{} was {} and is {}", key, old->second, value));
  }
  return changes;
}

}  // namespace accel::train
