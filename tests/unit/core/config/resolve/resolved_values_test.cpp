#include "core/config/resolve/resolved_values.hpp"
#include "base/text.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "config_file_fixture.hpp"
#include "core/config/keys/keys.hpp"

namespace accel::config {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class ResolvedValuesTest : public testing::ConfigFileTest {
 protected:
  void check(std::string_view yaml, std::vector<std::string> assignments = {}, bool program = false) {
    values_ = resolved_values(load(yaml, std::move(assignments), program));
  }

  /// "VALUE from ORIGIN, written as TEXT", without the directory of the file; "not listed".
  [[nodiscard]] std::string row(std::string_view key) const {
    const auto found =
        std::find_if(values_.begin(), values_.end(), [&](const ResolvedValue& v) { return v.key == key; });
    if (found == values_.end()) return "not listed";
    std::string origin = found->origin ? text_of(*found->origin) : "default";
    origin = origin.substr(origin.rfind('/') == std::string::npos ? 0 : origin.rfind('/') + 1);
    return fmt::format("{} from {}{}", text_of(found->value), origin,
                       found->written ? ", written as " + *found->written : "");
  }

  [[nodiscard]] std::set<std::string> keys() const {
    std::set<std::string> keys;
    for (const ResolvedValue& value : values_) keys.insert(value.key);
    return keys;
  }

  std::vector<ResolvedValue> values_;
};

TEST_F(ResolvedValuesTest, NamesTheLayerThatWins) {
  variables_ = {{"FSDP_VERSION", "2"}, {"FSDP_FORWARD_PREFETCH", "true"}};
  check("distributed_type: FSDP\nuse_cpu: true\nnum_processes: 2\n" + training(", seed: 1"),
        {"training.seed=2", "training.seed=3"});
  EXPECT_EQ(row("training.seed"), "3 from --set training.seed=3");
  EXPECT_EQ(row("num_processes"), "2 from run.yaml:3:16");
  EXPECT_EQ(row("fsdp_config.version"), "2 from environment variable FSDP_VERSION");
  EXPECT_EQ(row("training.log_every"), "10 from default");
}

TEST_F(ResolvedValuesTest, ShowsTheValueOfTheRunBesideTheWrittenOne) {
  gpus_ = 4;
  check(
      "distributed_type: FSDP\nnum_processes: -1\nfsdp_config: {sharding_strategy: 2, backward_prefetch: "
      "BACKWARD_POST}\n" +
      training(", lr_scheduler: {type: linear}, checkpoint: {host_memory: 4GB, every: continuous}"));
  EXPECT_EQ(row("num_processes"), "4 from run.yaml:2:16, written as -1");
  EXPECT_EQ(row("gpu_ids"), "[0, 1, 2, 3] from default");
  EXPECT_EQ(row("fsdp_config.sharding_strategy"), "SHARD_GRAD_OP from run.yaml:3:34, written as 2");
  EXPECT_EQ(row("fsdp_config.reshard_after_forward"), "false from default");
  EXPECT_EQ(row("fsdp_config.backward_prefetch"),
            "BACKWARD_PRE from run.yaml:3:56, written as BACKWARD_POST");
  EXPECT_EQ(row("parallelism_config.dp_shard_size"), "4 from default");
  EXPECT_THAT(row("training.checkpoint.host_memory"), HasSubstr("4000000000 from run.yaml:4:"));
  EXPECT_THAT(row("training.checkpoint.host_memory"), HasSubstr("written as 4GB"));
  EXPECT_THAT(row("training.checkpoint.every"), HasSubstr("continuous from run.yaml:4:"));
  EXPECT_EQ(row("training.lr_scheduler.total_steps"), "10 from default");
  EXPECT_EQ(row("launch.log_dir"), "runs/run/logs from default");
}

TEST_F(ResolvedValuesTest, WithoutAGpuTheRunIsOnTheCpu) {
  check("use_cpu: false\n" + training());
  EXPECT_EQ(row("use_cpu"), "true from run.yaml:1:10, written as false");
  EXPECT_EQ(row("distributed_type"), "NO from default");
}

TEST_F(ResolvedValuesTest, ReshardsToANumberOfRanks) {
  const std::string yaml =
      "distributed_type: FSDP\nuse_cpu: true\nnum_processes: 4\n"
      "fsdp_config: {version: 2, reshard_after_forward: 2}\n" +
      training();
  check(yaml);
  EXPECT_EQ(row("fsdp_config.reshard_after_forward"), "2 from run.yaml:4:50");
  EXPECT_EQ(row("fsdp_config.sharding_strategy"), "not listed");
  check(yaml, {"fsdp_config.reshard_after_forward=4"});
  EXPECT_THAT(row("fsdp_config.reshard_after_forward"), HasSubstr("true from --set"));
}

TEST_F(ResolvedValuesTest, ANullThatHidesAValueIsItsOrigin) {
  check(training(", max_grad_norm: 1.0, checkpoint: {every: 5}"),
        {"training.max_grad_norm=null", "training.checkpoint=null"});
  EXPECT_EQ(row("training.max_grad_norm"), "null from --set training.max_grad_norm=null");
  EXPECT_EQ(row("training.checkpoint.every"), "0 from --set training.checkpoint=null");
}

TEST_F(ResolvedValuesTest, TheOlderKeyForThePrecisionIsItsOrigin) {
  check("fp16: true\n" + training());
  EXPECT_EQ(row("mixed_precision"), "fp16 from run.yaml:1:7");
  EXPECT_EQ(row("training.grad_scaler.init_scale"), "65536 from default");
}

TEST_F(ResolvedValuesTest, WhatTheRunDoesNotUseIsListedIfItIsSet) {
  check("debug: true\ndowncast_bf16: 'no'\ndistributed_type: MULTI_CPU\nfsdp_config: {version: 2}\n" +
        training());
  EXPECT_EQ(row("debug"), "true from run.yaml:1:8");
  EXPECT_EQ(row("downcast_bf16"), "(not checked) from run.yaml:2:16");
  EXPECT_EQ(row("fsdp_config.version"), "2 from run.yaml:4:24");
  EXPECT_EQ(row("fsdp_config.forward_prefetch"), "not listed");
  EXPECT_EQ(row("same_network"), "not listed");
  EXPECT_EQ(row("tpu_use_cluster"), "not listed");
  EXPECT_EQ(row("training.grad_scaler.init_scale"), "not listed");
  EXPECT_EQ(row("training.data.eval.path"), "not listed");
}

TEST_F(ResolvedValuesTest, AProgramHasTheKeysOfTheLauncher) {
  check("mixed_precision: bf16\nfsdp_config: {version: 2}\n", {}, /*program=*/true);
  EXPECT_EQ(row("mixed_precision"), "bf16 from run.yaml:1:18");
  EXPECT_EQ(row("num_processes"), "1 from default");
  EXPECT_EQ(row("launch.max_restarts"), "0 from default");
  EXPECT_EQ(row("launch.log_dir"), "null from default");
  EXPECT_EQ(row("fsdp_config.version"), "2 from run.yaml:2:24");
  for (const char* key : {"launch.backend", "fsdp_config.offload_params", "training.max_steps"})
    EXPECT_EQ(row(key), "not listed") << key;
}

// A key that is added to the tables needs a value here.
TEST_F(ResolvedValuesTest, EveryKeyWithAnEffectHasAValue) {
  const std::string eval = fmt::format(
      "training.data.eval={{format: text, path: {}/*.txt, sequence_length: 8}}", dir_.path().string());
  const std::string hook = "training.ddp.comm_hook=power_sgd";
  const std::string rest = "use_cpu: true\nnum_processes: 2\n" + training();
  check("distributed_type: FSDP\nmixed_precision: fp16\n" + rest, {eval});
  std::set<std::string> seen = keys();
  check("distributed_type: MULTI_CPU\nmixed_precision: fp8\n" + rest, {hook});
  seen.merge(keys());
  check(rest, {"dynamo_config.backend=INDUCTOR"});
  seen.merge(keys());
  for (const std::string& type : split(kOptimizerNames, '|')) {
    check(rest, {"training.optimizer.type=" + type});
    seen.merge(keys());
  }
  for (const char* type : {"cosine", "polynomial", "inverse_sqrt", "cosine_warmup_with_min_lr",
                           "warmup_stable_decay", "reduce_lr_on_plateau", "greedy"}) {
    check(rest, {fmt::format("training.lr_scheduler.type={}", type), "training.lr_scheduler.decay_steps=2",
                 eval, "training.eval_every=1"});
    seen.merge(keys());
  }
  for (const auto table : {run_keys(), training_keys()}) {
    for (const Key& key : table) {
      const bool is_exception =
          key.path == "fp16" || key.path == "dynamo_backend" || key.path == "launch.monitor_interval";
      if (key.no_effect.empty() && !is_exception)
        EXPECT_THAT(seen, Contains(std::string(key.path)));
      else
        EXPECT_THAT(seen, Not(Contains(std::string(key.path))));
    }
  }
}

}  // namespace
}  // namespace accel::config
