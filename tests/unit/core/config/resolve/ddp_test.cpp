#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_file_fixture.hpp"

namespace accel::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ConfigDdpTest : public testing::ConfigFileTest {
 protected:
  [[nodiscard]] std::string two_ranks(std::string_view ddp = "") const {
    return "distributed_type: MULTI_CPU\nnum_processes: 2\n" +
           training(ddp.empty() ? "" : fmt::format(", ddp: {{{}}}", ddp));
  }
  DdpConfig ddp(std::string_view keys) { return load(two_ranks(keys)).config.training->ddp; }
};

TEST_F(ConfigDdpTest, HooksHaveAcceleratesNamesAndTorchsDefaults) {
  EXPECT_EQ(ddp("").comm_hook, CommHookType::kNo);
  EXPECT_EQ(ddp("comm_hook: no").comm_hook, CommHookType::kNo);
  EXPECT_EQ(ddp("comm_hook: fp16").comm_hook, CommHookType::kFp16);
  EXPECT_EQ(ddp("comm_hook: bf16, comm_wrapper: fp16").comm_wrapper, CommHookType::kFp16);
  const PowerSgdConfig plain = ddp("comm_hook: power_sgd").power_sgd;
  EXPECT_EQ(plain.matrix_approximation_rank, 1);
  EXPECT_EQ(plain.start_iter, 1000);
  EXPECT_EQ(plain.min_compression_rate, 2);
  EXPECT_TRUE(plain.use_error_feedback);
  EXPECT_TRUE(plain.warm_start);
  EXPECT_EQ(plain.orthogonalization_epsilon, 0);
  EXPECT_EQ(plain.random_seed, 0U);
  const PowerSgdConfig set =
      ddp("comm_hook: power_sgd, comm_wrapper: bf16, comm_state_option: {matrix_approximation_rank: 4, "
          "start_powerSGD_iter: 1, min_compression_rate: 0.5, use_error_feedback: false, warm_start: false, "
          "orthogonalization_epsilon: 1e-8, random_seed: 4294967295, batch_tensors_with_same_shape: false}")
          .power_sgd;
  EXPECT_EQ(set.matrix_approximation_rank, 4);
  EXPECT_EQ(set.start_iter, 1);
  EXPECT_EQ(set.min_compression_rate, 0.5);
  EXPECT_FALSE(set.use_error_feedback);
  EXPECT_FALSE(set.warm_start);
  EXPECT_EQ(set.orthogonalization_epsilon, 1e-8);
  EXPECT_EQ(set.random_seed, 4294967295U);
}

TEST_F(ConfigDdpTest, WhatAccelerateIgnoresIsAWarning) {
  EXPECT_THAT(load(two_ranks("comm_hook: power_sgd, comm_wrapper: fp16, comm_state_option: {random_seed: 1}"))
                  .warnings,
              IsEmpty());
  const LoadedConfig wrapper = load(two_ranks("comm_wrapper: fp16"));
  EXPECT_THAT(wrapper.warnings,
              ElementsAre(HasSubstr("'training.ddp.comm_wrapper: fp16' has no effect without "
                                    "'training.ddp.comm_hook'")));
  EXPECT_EQ(wrapper.config.training->ddp.comm_wrapper, CommHookType::kNo);
  EXPECT_THAT(load(two_ranks("comm_hook: bf16, comm_state_option: {random_seed: 1}")).warnings,
              ElementsAre(HasSubstr("'training.ddp.comm_state_option' has no effect without "
                                    "'training.ddp.comm_hook: power_sgd'")));
}

TEST_F(ConfigDdpTest, RefusesWhatCannotBe) {
  const auto error = [&](std::string_view keys) { return error_of(two_ranks(keys)); };
  EXPECT_THAT(error("comm_hook: fp8"),
              HasSubstr("'training.ddp.comm_hook' must be one of no, fp16, bf16, power_sgd, "
                        "batched_power_sgd; found 'fp8'"));
  EXPECT_THAT(error("comm_hook: batched_power_sgd"),
              HasSubstr("'training.ddp.comm_hook: batched_power_sgd' is not supported yet"));
  EXPECT_THAT(error("comm_wrapper: power_sgd"), HasSubstr("must be one of no, fp16, bf16"));
  EXPECT_THAT(error("bucket_cap_mb: 25"), HasSubstr("unknown key 'bucket_cap_mb' in 'training.ddp'"));
  EXPECT_THAT(error("comm_state_option: {rank: 2}"),
              HasSubstr("unknown key 'rank' in 'training.ddp.comm_state_option'"));
  EXPECT_THAT(error("comm_state_option: {matrix_approximation_rank: 0}"), HasSubstr("at least 1"));
  EXPECT_THAT(error("comm_state_option: {random_seed: 4294967296}"), HasSubstr("less than 4294967296"));
  EXPECT_THAT(error("comm_state_option: {batch_tensors_with_same_shape: true}"),
              HasSubstr("is not supported yet"));
  for (const char* only : {"use_error_feedback", "warm_start"}) {
    EXPECT_THAT(error(fmt::format(
                    "comm_hook: power_sgd, comm_state_option: {{start_powerSGD_iter: 1, {}: false}}", only)),
                HasSubstr("'training.ddp.comm_state_option.start_powerSGD_iter: 1' must be at least 2 with "
                          "use_error_feedback or warm_start, as in torch"));
  }
}

TEST_F(ConfigDdpTest, AHookNeedsSeveralWholeModels) {
  const std::string hook = training(", ddp: {comm_hook: bf16}");
  EXPECT_EQ(error_of("distributed_type: FSDP\nnum_processes: 2\n" + hook, {"training.ddp.comm_hook=bf16"}),
            "--set training.ddp.comm_hook=bf16: 'training.ddp.comm_hook: bf16' is for data parallelism, and "
            "'distributed_type' is FSDP");
  EXPECT_EQ(load("distributed_type: FSDP\nnum_processes: 2\n" + hook, {"training.ddp.comm_hook=no"})
                .config.training->ddp.comm_hook,
            CommHookType::kNo);
  for (const char* one : {"distributed_type: MULTI_CPU\nnum_processes: 1\n", ""}) {
    EXPECT_THAT(error_of(one + hook), HasSubstr("'training.ddp.comm_hook: bf16' is for several processes, "
                                                "and this run has one"));
  }
  // A plan may be for one of several numbers of processes.
  only_plans_ = true;
  const std::string one = "distributed_type: MULTI_CPU\nnum_processes: 1\n" + hook;
  EXPECT_EQ(load(one).config.training->ddp.comm_hook, CommHookType::kNo);
  EXPECT_EQ(load(one, {"num_processes=2"}).config.training->ddp.comm_hook, CommHookType::kBf16);
}

}  // namespace
}  // namespace accel::config
