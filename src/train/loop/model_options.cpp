#include "train/loop/model_options.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "base/log.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/run_state.hpp"
#include "train/checkpoint/check_resumed.hpp"
#include "train/checkpoint/load.hpp"
#include "train/checkpoint/load_foreign.hpp"
#include "train/graph/analysis/vocabulary.hpp"

namespace accel::train {

std::filesystem::path directory_with_sums(std::filesystem::path weights) {
  if (weights.empty()) return {};
  // A path such as "." does not name the directory above.
  weights = std::filesystem::absolute(weights).lexically_normal();
  if (!weights.has_filename()) weights = weights.parent_path();
  for (const std::filesystem::path& directory : {weights, weights.parent_path()}) {
    if (std::filesystem::exists(directory / ckpt::kManifestName)) return directory;
  }
  return {};
}

ShardingOptions sharding_options(const config::Config& config, std::filesystem::path weights,
                                 ckpt::ReadSums* sums) {
  const config::TrainingConfig& training = *config.training;
  ShardingOptions options;
  options.fsdp = config.fsdp;
  options.optimizer = training.optimizer;
  if (config.has_float8()) {
    options.float8 = training.float8;
    options.float8->gathers_float8 = config.gathers_float8();
  }
  options.tp_plan = training.parallel.tp_plan;
  if (training.compile.is_on()) options.compile = training.compile;
  options.weights.path = std::move(weights);
  if (training.checkpoint.resume_from.empty() && !directory_with_sums(options.weights.path).empty()) {
    // What is read is noted by path, as the directory of the sums has it.
    options.weights.path = std::filesystem::absolute(options.weights.path);
    options.weights.path_sums = sums;
  }
  for (const config::Rename& rule : training.model.rename)
    options.weights.names.rename.emplace_back(rule.pattern, rule.replacement);
  options.weights.init_std = training.model.init_std;
  options.weights.seed = training.seed;
  options.weights.from_rank_0 = training.model.broadcast_from_rank0;
  if (!training.checkpoint.resume_from.empty()) {
    const std::filesystem::path& from = training.checkpoint.resume_from;
    const bool foreign = is_foreign(from);
    options.weights.resumed =
        foreign ? foreign_part(from, ckpt::kModelStem) : part_to_resume(from, ckpt::kModelStem);
    if (!foreign) options.weights.resumed_sums = sums;
    options.weights.resumes_adapter =
        !foreign && ckpt::read_run_state(from / ckpt::kRunStateName).frozen_hash.has_value();
    options.weights.drops_frozen = training.checkpoint.adapter_only;
    // Every rank sees the checkpoint and reads its own part. What it may lack is where rank 0 alone sees it.
    if (!foreign && !options.weights.resumes_adapter) options.weights.from_rank_0 = false;
  }
  options.poison = std::getenv("ACCEL_POISON") != nullptr;
  // For these types Accelerate uses DistributedDataParallel, which broadcasts buffers.
  options.broadcast_buffers = config.distributed_type == config::DistributedType::kMultiCpu ||
                              config.distributed_type == config::DistributedType::kMultiGpu;
  options.ddp = training.ddp;
  const config::ModelConfig& model = training.model;
  options.inputs = model.inputs;
  if (model.loss == "cross_entropy" && model.fused_head != "never") options.head_output = model.output;
  return options;
}

void check_sums_of_weights(const config::TrainingConfig& config, const std::filesystem::path& weights,
                           ckpt::ReadSums& sums, Group& group) {
  if (weights.empty() || config.model.broadcast_from_rank0) return;
  const std::filesystem::path directory = directory_with_sums(weights);
  std::array<double, 1> seen = {directory.empty() ? 0.0 : 1.0};
  group.all_reduce_sum(seen);
  if (seen[0] < group.size()) return;
  for (const std::string& name : check_resumed(directory, sums, config::VerifyOnResume::kAuto, group)) {
    if (group.rank() != 0) continue;
    log::info(fmt::format("'{}' is read in part and not compared with its sum", (directory / name).string()));
  }
}

std::map<std::string, std::int64_t> known_tokens(ModelFile& file, const config::ModelConfig& config) {
  std::map<std::string, std::int64_t> tokens;
  for (std::size_t i = 0; i < config.inputs.size(); ++i) {
    if (config.inputs[i] == config.targets) continue;
    if (const auto known = vocabulary_of(file.module(), i)) tokens.emplace(config.inputs[i], *known);
  }
  return tokens;
}

}  // namespace accel::train
