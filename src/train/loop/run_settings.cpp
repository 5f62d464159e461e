#include "train/loop/run_settings.hpp"

#include <fmt/format.h>

#include "ckpt/store/best_checkpoint.hpp"
#include "ckpt/store/run_state.hpp"
#include "core/config/keys/number_settings.hpp"

namespace accel::train {
namespace {

constexpr const char* kContents = "contents of training.data.train (CRC-32 of samples)";

std::string layout_of(const Mesh& mesh) {
  const int sequence = mesh.size(Axis::kSp);
  const std::string shards =
      fmt::format("{} {}{}", mesh.shards(), mesh.shards() == 1 ? "shard" : "shards",
                  sequence == 1 ? "" : fmt::format(" of which {} share a sequence", sequence));
  const std::string parts = mesh.tp() == 1 ? "" : fmt::format(" x {} {}", mesh.tp(), ckpt::kTensorParts);
  if (mesh.replicas() == 1) return shards + parts;
  const std::string replicas = fmt::format("{} replicas", mesh.replicas());
  return (mesh.shards() == 1 ? replicas : fmt::format("{} x {}", replicas, shards)) + parts;
}

}  // namespace

std::map<std::string, std::string> settings_of(const config::Config& config, std::uint32_t graph,
                                               const Samples& data,
                                               const std::vector<HeldOutSamples>& held_out, const Mesh& mesh,
                                               const std::string& backend) {
  std::map<std::string, std::string> settings = config::number_settings(config);
  const config::TrainingConfig& run = *config.training;
  // 0 stands for max_steps.
  settings["training.lr_scheduler.total_steps"] =
      std::to_string(run.lr_scheduler.total_steps > 0 ? run.lr_scheduler.total_steps : run.max_steps);
  settings[ckpt::kMicroBatchSetting] = std::to_string(run.data.batch_size * mesh.data_size());
  settings[kContents] = fmt::format("{:08x}", data.source().fingerprint());
  for (const auto& [name, samples] : held_out) {
    settings[ckpt::held_out_setting(name)] =
        ckpt::held_out_value(samples.source().fingerprint(), samples.source().sequence_length());
  }
  settings["graph of training.model.path (CRC-32 of its methods)"] = fmt::format("{:08x}", graph);
  settings[ckpt::kLayoutSetting] = layout_of(mesh);
  if (mesh.size() > 1) settings["backend of the ranks"] = backend;
  settings["device"] = config.launch.use_cpu || config.launch.gpu_ids.empty() ? "CPU" : "GPU";
  return settings;
}

bool has_other_held_out(const std::map<std::string, std::string>& in_checkpoint,
                        const std::map<std::string, std::string>& now, const std::string& set) {
  const auto before = in_checkpoint.find(ckpt::held_out_setting(set));
  const auto own = now.find(ckpt::held_out_setting(set));
  return before != in_checkpoint.end() && own != now.end() &&
         !ckpt::are_same_held_out(before->second, own->second);
}

}  // namespace accel::train
