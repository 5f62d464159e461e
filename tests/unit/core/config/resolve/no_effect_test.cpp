#include "core/config/resolve/no_effect.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_file_fixture.hpp"
#include "core/config/keys/keys.hpp"

namespace accel::config {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class NoEffectTest : public testing::ConfigFileTest {
 protected:
  std::vector<std::string> found(std::string_view yaml, std::vector<std::string> assignments = {},
                                 bool program = false) {
    return settings_without_effect(load(yaml, std::move(assignments), program));
  }
};

TEST_F(NoEffectTest, NothingIsSaidOfSettingsWithAnEffect) {
  EXPECT_THAT(found("use_cpu: true\nnum_processes: 2\nmixed_precision: bf16\ndistributed_type: FSDP\n" +
                    training(", seed: 1, checkpoint: {every: 5, total_limit: 2}")),
              IsEmpty());
}

TEST_F(NoEffectTest, NamesThePlaceAndTheReason) {
  EXPECT_THAT(
      found("same_network: true\ntpu_use_cluster: false\n" + training()),
      ElementsAre(
          HasSubstr(
              "run.yaml:1:15: 'same_network' has no effect: machines find each other by main_process_ip"),
          HasSubstr("run.yaml:2:18: 'tpu_use_cluster' has no effect: it is for a system that accel does not "
                    "have")));
  EXPECT_THAT(found(training(), {"debug=true"}),
              ElementsAre("--set debug=true: 'debug' has no effect: only programs that use Accelerate read "
                          "it"));
}

TEST_F(NoEffectTest, ADepthNeedsAPrefetch) {
  const std::string fsdp = "use_cpu: true\ndistributed_type: FSDP\nfsdp_config: {fsdp_prefetch_depth: 2, ";
  EXPECT_THAT(
      found(fsdp + "fsdp_version: 1}\n" + training()),
      ElementsAre(HasSubstr("'fsdp_config.prefetch_depth' has no effect: no unit is gathered ahead")));
  EXPECT_THAT(found(fsdp + "fsdp_version: 2}\n" + training()), IsEmpty());
  EXPECT_THAT(found(fsdp + "fsdp_backward_prefetch: BACKWARD_PRE}\n" + training()), IsEmpty());
}

// A key of the table that has no effect is said to have none, whatever else is set.
TEST_F(NoEffectTest, FindsEveryKeyThatIsIgnored) {
  const auto value_for = [](const Key& key) -> std::string {
    if (!key.choices.empty()) return std::string(key.choices.substr(0, key.choices.find('|')));
    return key.type == Type::kBool ? "true" : "1";
  };
  int ignored = 0;
  for (const Key& key : run_keys()) {
    if (key.no_effect.empty()) continue;
    ++ignored;
    EXPECT_THAT(found("use_cpu: true\ndistributed_type: FSDP\n" + training(),
                      {fmt::format("{}={}", key.path, value_for(key))}),
                ElementsAre(HasSubstr(fmt::format("'{}' has no effect: {}", key.path, key.no_effect))));
  }
  EXPECT_GE(ignored, 10);
}

TEST_F(NoEffectTest, SomeKeysNeedAnother) {
  const std::string yaml = "use_cpu: true\ndistributed_type: FSDP\n" + training();
  const auto rows = std::to_array<std::pair<const char*, const char*>>({
      {"gpu_ids=all", "the run is on the CPU"},
      {"fsdp_config.offload_params=true", "on the CPU everything is in the memory of the host"},
      {"fsdp_config.min_num_params=5", "is not SIZE_BASED_WRAP"},
      {"fsdp_config.transformer_layer_cls_to_wrap=Block", "is not TRANSFORMER_BASED_WRAP"},
      {"training.lr_scheduler.warmup_steps=5", "the schedule does not follow the step"},
      {"training.lr_scheduler.total_steps=5", "the schedule has no end"},
      {"training.lr_scheduler.num_cycles=5", "the schedule has no cosine"},
      {"training.lr_scheduler.power=2", "the schedule has no such option"},
      {"training.lr_scheduler.factor=0.5", "the schedule has no such option"},
      {"training.lr_scheduler.max_lr=0.5", "the schedule has no such option"},
      {"training.optimizer.momentum=0.5", "the optimizer has no such option"},
      {"training.optimizer.beta2_decay=-0.5", "the optimizer has no such option"},
      {"training.optimizer.adjust_lr_fn=original", "the optimizer has no such option"},
      {"training.checkpoint.total_limit=5", "no checkpoints without 'training.checkpoint.every'"},
      {"training.checkpoint.verify=true", "no checkpoints without 'training.checkpoint.every'"},
  });
  for (const auto& [assignment, why] : rows)
    EXPECT_THAT(found(yaml, {assignment}), ElementsAre(HasSubstr(why))) << assignment;
  const std::vector<std::string> others = {"fsdp_config.auto_wrap_policy=SIZE_BASED_WRAP",
                                           "training.lr_scheduler.type=linear",
                                           "training.checkpoint.every=5"};
  for (const char* assignment : {"fsdp_config.min_num_params=5", "training.lr_scheduler.warmup_steps=5",
                                 "training.checkpoint.total_limit=5", "fsdp_config.offload_params=false"}) {
    std::vector<std::string> all = others;
    all.emplace_back(assignment);
    EXPECT_THAT(found(yaml, all), IsEmpty()) << assignment;
  }
  EXPECT_THAT(found(yaml, {fmt::format("training.data.eval={{format: text, path: {}/*.txt, sequence_length: "
                                       "8}}",
                                       dir_.path().string())}),
              ElementsAre(HasSubstr("there is no evaluation without 'training.eval_every'")));
}

TEST_F(NoEffectTest, WhatALaunchWarnsOfIsNotSaidTwice) {
  EXPECT_THAT(found("distributed_type: MULTI_CPU\nfsdp_config: {min_num_params: 5}\nlaunch: "
                    "{monitor_interval: 1}\n" +
                    training()),
              IsEmpty());
}

TEST_F(NoEffectTest, AProgramGetsWhatAccelerateGivesIt) {
  EXPECT_THAT(found("distributed_type: FSDP\ndebug: true\nfp16: true\nfsdp_config: {use_orig_params: true}\n"
                    "parallelism_config: {cp_backend: torch}\nlaunch: {max_restarts: 1}\n",
                    {}, /*program=*/true),
              IsEmpty());
  const std::vector<std::string> said = found(
      "distributed_type: MULTI_CPU\nsame_network: true\nfsdp_config: {version: 2}\n"
      "launch: {worker: x}\n" +
          training(),
      {}, /*program=*/true);
  EXPECT_THAT(said, Contains(HasSubstr("'fsdp_config.version' has no effect: 'distributed_type' is not")));
  EXPECT_THAT(said, Contains(HasSubstr("'launch.worker' has no effect: it is for a training")));
  EXPECT_THAT(said, Contains(HasSubstr("'training.max_steps' has no effect: a program runs instead")));
  EXPECT_THAT(said, Contains(HasSubstr("'same_network' has no effect")));
  EXPECT_THAT(said, Not(Contains(HasSubstr("distributed_type' has no effect"))));
}

}  // namespace
}  // namespace accel::config
