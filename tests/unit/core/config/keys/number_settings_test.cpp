#include "core/config/keys/number_settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace accel::config {
namespace {

std::vector<std::string> keys_of(const std::map<std::string, std::string>& settings) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : settings) keys.push_back(key);
  return keys;
}

// A new setting of the configuration makes this test fail. If the numbers of a training do not depend on it,
// it gets the trait kNoNumbers in the tables of keys, otherwise it belongs into this list.
TEST(NumberSettingsTest, EachSettingThatNumbersDependOnIsThere) {
  Config config;
  config.training.emplace().profile.emplace();
  config.training->data.eval.emplace();
  config.training->model.rename.push_back({"a", "b"});
  EXPECT_THAT(
      keys_of(number_settings(config)),
      ::testing::ElementsAre(
          "distributed_type", "dynamo_config.backend",  //
          "fp8_config.enable_fsdp_float8_all_gather", "fsdp_config.auto_wrap_policy",
          "fsdp_config.autocast_dtype", "fsdp_config.buffer_dtype", "fsdp_config.ignored_modules",
          "fsdp_config.io_dtype", "fsdp_config.min_num_params", "fsdp_config.offload_params",
          "fsdp_config.param_dtype", "fsdp_config.reduce_dtype", "fsdp_config.transformer_layer_cls_to_wrap",
          "fsdp_config.version", "mixed_precision", "training.data.drop_last", "training.data.shuffle",
          "training.data.train.pad_to_multiple_of", "training.ddp.comm_hook",
          "training.ddp.comm_state_option.matrix_approximation_rank",
          "training.ddp.comm_state_option.min_compression_rate",
          "training.ddp.comm_state_option.orthogonalization_epsilon",
          "training.ddp.comm_state_option.random_seed", "training.ddp.comm_state_option.start_powerSGD_iter",
          "training.ddp.comm_state_option.use_error_feedback", "training.ddp.comm_state_option.warm_start",
          "training.ddp.comm_wrapper", "training.float8.filter", "training.float8.recipe",
          "training.grad_scaler.backoff_factor", "training.grad_scaler.growth_factor",
          "training.grad_scaler.growth_interval", "training.grad_scaler.init_scale",
          "training.gradient_accumulation_steps", "training.loss_mean", "training.lr_scheduler.cooldown",
          "training.lr_scheduler.decay_steps", "training.lr_scheduler.decay_type",
          "training.lr_scheduler.factor", "training.lr_scheduler.lr_end", "training.lr_scheduler.max_lr",
          "training.lr_scheduler.min_lr", "training.lr_scheduler.min_lr_ratio",
          "training.lr_scheduler.num_cycles", "training.lr_scheduler.patience", "training.lr_scheduler.power",
          "training.lr_scheduler.reset_start", "training.lr_scheduler.threshold",
          "training.lr_scheduler.threshold_mode", "training.lr_scheduler.timescale",
          "training.lr_scheduler.type", "training.lr_scheduler.warmup",
          "training.lr_scheduler.warmup_lr_ratio", "training.lr_scheduler.warmup_steps",
          "training.lr_scheduler.warmup_type", "training.max_grad_norm", "training.model.class_weights",
          "training.model.fused_head", "training.model.ignore_index", "training.model.inputs",
          "training.model.label_smoothing", "training.model.loss", "training.model.output",
          "training.model.targets", "training.model.uint8_divisor", "training.model.z_loss",
          "training.optimizer.adjust_lr_fn", "training.optimizer.alpha", "training.optimizer.amsgrad",
          "training.optimizer.beta2_decay", "training.optimizer.betas", "training.optimizer.centered",
          "training.optimizer.d", "training.optimizer.dampening", "training.optimizer.eps",
          "training.optimizer.eps2", "training.optimizer.groups",
          "training.optimizer.initial_accumulator_value", "training.optimizer.lr",
          "training.optimizer.lr_decay", "training.optimizer.momentum", "training.optimizer.nesterov",
          "training.optimizer.no_decay", "training.optimizer.type", "training.optimizer.weight_decay",
          "training.seed", "training.skip_nonfinite", "training.tf32"));
}

TEST(NumberSettingsTest, SomeCountInSomeTrainings) {
  const auto more_than_by_default = [](const auto& change) {
    Config config;
    config.training.emplace().data.eval.emplace();
    const auto plain = number_settings(config);
    change(config);
    std::vector<std::string> more;
    for (const std::string& key : keys_of(number_settings(config))) {
      if (!plain.contains(key)) more.push_back(key);
    }
    return more;
  };
  const auto of_evaluations =
      ::testing::ElementsAre("training.best_metric", "training.data.batch_size",
                             "training.data.eval.pad_to_multiple_of", "training.eval_every");
  EXPECT_THAT(more_than_by_default([](Config& config) { config.training->early_stopping.patience = 2; }),
              of_evaluations);
  EXPECT_THAT(more_than_by_default([](Config& config) { config.training->checkpoint.keep_best = true; }),
              of_evaluations);
  EXPECT_THAT(more_than_by_default([](Config& config) { config.training->lr_scheduler.type = "greedy"; }),
              of_evaluations);
  EXPECT_THAT(more_than_by_default([](Config& config) { config.fsdp.tp_size = 2; }),
              ::testing::ElementsAre("training.parallel.tp_plan"));
}

TEST(NumberSettingsTest, ValuesAreText) {
  Config config;
  config.fsdp.precision.reduce_dtype = "bfloat16";
  config.training.emplace().optimizer.no_decay = {"bias", "norm"};
  config.training->seed = 7;
  auto settings = number_settings(config);
  EXPECT_EQ(settings["fsdp_config.reduce_dtype"], "bfloat16");
  EXPECT_EQ(settings["training.optimizer.no_decay"], R"(["bias","norm"])");
  EXPECT_EQ(settings["training.seed"], "7");
  EXPECT_TRUE(follows_mixed_precision("fsdp_config.reduce_dtype"));
  EXPECT_FALSE(follows_mixed_precision("training.seed"));
}

}  // namespace
}  // namespace accel::config
