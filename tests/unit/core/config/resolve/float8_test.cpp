#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "config_file_fixture.hpp"
#include "core/config/resolve/no_effect.hpp"

namespace accel::config {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Float8ConfigTest : public testing::ConfigFileTest {
 protected:
  const std::string fp8_ = "use_cpu: true\nmixed_precision: fp8\n" + training();
  const std::string fsdp_ = "distributed_type: FSDP\nfsdp_config: {version: 2}\n" + fp8_;
};

TEST_F(Float8ConfigTest, ComputesInBfloat16ButForItsLinears) {
  const Config one = load(fp8_).config;
  EXPECT_TRUE(one.has_float8());
  EXPECT_EQ(one.fsdp.precision.autocast_dtype, "bfloat16");
  EXPECT_EQ(one.fsdp.precision.param_dtype, "");
  EXPECT_FALSE(one.fsdp.precision.is_float16());
  const PrecisionConfig sharded =
      load(fsdp_, {"fp8_config.enable_fsdp_float8_all_gather=false"}).config.fsdp.precision;
  EXPECT_EQ(sharded.param_dtype + sharded.reduce_dtype + sharded.io_dtype, "bfloat16bfloat16bfloat16");
  EXPECT_EQ(sharded.autocast_dtype, "");
  const PrecisionConfig old = load(fsdp_, {"fsdp_config.version=1"}).config.fsdp.precision;
  EXPECT_EQ(old.param_dtype + old.autocast_dtype + old.buffer_dtype, "bfloat16bfloat16bfloat16");
  EXPECT_FALSE(load(fp8_, {"mixed_precision=bf16"}).config.has_float8());
}

TEST_F(Float8ConfigTest, ReadsItsKeysUnderTheNamesOfAccelerate) {
  const Float8Config standard = load(fp8_).config.training->float8;
  EXPECT_EQ(standard.recipe, Float8Recipe::kTensorwise);
  EXPECT_THAT(standard.filter, IsEmpty());
  EXPECT_TRUE(standard.gathers_float8);
  const Float8Config set =
      load("fp8_config: {fp8_backend: ao, fp8_enable_fsdp_float8_all_gather: no}\n" + fp8_,
           {"training.float8.recipe=rowwise_with_gw_hp", "training.float8.filter=[head, gate]"})
          .config.training->float8;
  EXPECT_EQ(set.recipe, Float8Recipe::kRowwiseWithGwHp);
  EXPECT_THAT(set.filter, ElementsAre("head", "gate"));
  EXPECT_FALSE(set.gathers_float8);
  // What `accelerate launch` passes to a script.
  variables_ = {{"ACCELERATE_FP8_BACKEND", "AO"}, {"ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "0"}};
  EXPECT_FALSE(load(fp8_).config.training->float8.gathers_float8);
}

TEST_F(Float8ConfigTest, RefusesOtherBackends) {
  EXPECT_EQ(
      error_of(fp8_, {"fp8_config.backend=TE"}),
      "--set fp8_config.backend=TE: 'fp8_config.backend: TE' asks for Transformer Engine, which accel does "
      "not have");
  EXPECT_EQ(error_of("fp8_config: {backend: MSAMP}\n" + fp8_),
            "run.yaml:1:23: 'fp8_config.backend: MSAMP' asks for MS-AMP, which accel does not have");
  variables_ = {{"ACCELERATE_FP8_BACKEND", "TE"}};
  EXPECT_THAT(error_of(fp8_), HasSubstr("ACCELERATE_FP8_BACKEND: 'fp8_config.backend: TE' asks for"));
  // Nothing reads the section in another precision, and a program has a library of its own.
  EXPECT_EQ(error_of(fp8_, {"mixed_precision=bf16", "fp8_config.backend=TE"}), "no error");
  EXPECT_EQ(error_of("mixed_precision: fp8\nfp8_config: {backend: TE}\n", {}, /*program=*/true), "no error");
}

TEST_F(Float8ConfigTest, GathersInFloat8WithVersion2OfFsdpAlone) {
  EXPECT_TRUE(load(fsdp_).config.gathers_float8());
  EXPECT_FALSE(load(fsdp_, {"fp8_config.enable_fsdp_float8_all_gather=false"}).config.gathers_float8());
  EXPECT_FALSE(load(fsdp_, {"fsdp_config.version=1"}).config.gathers_float8());
  EXPECT_FALSE(load(fsdp_, {"mixed_precision=bf16"}).config.gathers_float8());
  EXPECT_FALSE(load(fp8_).config.gathers_float8());
}

TEST_F(Float8ConfigTest, RefusesToGatherWhatHasAScaleForEachRow) {
  EXPECT_EQ(
      error_of(fsdp_, {"training.float8.recipe=rowwise"}),
      "--set training.float8.recipe=rowwise: 'training.float8.recipe: rowwise' has a scale for each row, "
      "and 'fp8_config.enable_fsdp_float8_all_gather: true', its default, gathers weights with one scale "
      "each, in float8");
  EXPECT_EQ(
      error_of(fsdp_, {"training.float8.recipe=rowwise_with_gw_hp",
                       "fp8_config.enable_fsdp_float8_all_gather=true"}),
      "--set training.float8.recipe=rowwise_with_gw_hp: 'training.float8.recipe: rowwise_with_gw_hp' has a "
      "scale for each row, and 'fp8_config.enable_fsdp_float8_all_gather: true' gathers weights with one "
      "scale each, in float8");
  for (const char* other : {"fp8_config.enable_fsdp_float8_all_gather=false", "fsdp_config.version=1",
                            "mixed_precision=bf16", "training.float8.recipe=tensorwise"})
    EXPECT_EQ(error_of(fsdp_, {"training.float8.recipe=rowwise", other}), "no error") << other;
  EXPECT_EQ(error_of(fp8_, {"training.float8.recipe=rowwise"}), "no error");
}

TEST_F(Float8ConfigTest, SaysWhichKeysHaveNoEffect) {
  const auto found = [&](const std::string& yaml, std::vector<std::string> assignments) {
    return settings_without_effect(load(yaml, std::move(assignments)));
  };
  const std::vector<std::string> keys = {
      "fp8_config.backend=AO",         "fp8_config.enable_fsdp_float8_all_gather=true",
      "fp8_config.pad_inner_dim=true", "fp8_config.amax_history_length=16",
      "fp8_config.margin=1",           "training.float8.recipe=rowwise"};
  EXPECT_THAT(
      found(fp8_, keys),
      ElementsAre(HasSubstr("'fp8_config.enable_fsdp_float8_all_gather' has no effect: no weight of a "
                            "float8 linear is sharded by FSDP version 2"),
                  HasSubstr("'fp8_config.pad_inner_dim' has no effect: accel pads"),
                  HasSubstr("'fp8_config.margin' has no effect: it is for a system"),
                  HasSubstr("'fp8_config.amax_history_length' has no effect")));
  EXPECT_THAT(
      found("use_cpu: true\n" + training(), keys),
      AllOf(Contains(HasSubstr("'fp8_config.backend' has no effect: 'mixed_precision' is not fp8")),
            Contains(HasSubstr("'training.float8.recipe' has no effect: 'mixed_precision' is not fp8"))));
  EXPECT_THAT(found(fsdp_, {"fp8_config.enable_fsdp_float8_all_gather=false"}),
              Not(Contains(HasSubstr("fp8_config"))));
}

// A launch on a GPU without float8 products, as Accelerate's state does it.
TEST_F(Float8ConfigTest, BecomesFloat16OnAnOlderGpu) {
  const auto loaded_with = [&](std::optional<double> capability, bool only_plans) {
    accel::testing::write_file(dir_ / "run.yaml", "mixed_precision: fp8\n" + training());
    ConfigRequest request;
    request.file = dir_ / "run.yaml";
    request.visible_gpus = 1;
    request.only_plans = only_plans;
    request.environment = [](const std::string&) { return std::nullopt; };
    request.compute_capability = [=](const std::vector<int>&) { return capability; };
    return load_config(request);
  };
  const LoadedConfig older = loaded_with(8.0, false);
  EXPECT_EQ(older.config.mixed_precision, "fp16");
  EXPECT_TRUE(older.config.fsdp.precision.is_float16());
  EXPECT_THAT(
      older.warnings,
      ElementsAre(HasSubstr("run.yaml:1:18: 'mixed_precision: fp8' needs GPUs of compute capability 8.9 or "
                            "later, and found 8.0: the run computes in fp16")));
  for (const std::optional<double> capability :
       {std::optional(8.9), std::optional(9.0), std::optional<double>()})
    EXPECT_TRUE(loaded_with(capability, false).config.has_float8());
  EXPECT_TRUE(loaded_with(8.0, true).config.has_float8());
}

// An older GPU beside those of the ranks does not matter.
TEST_F(Float8ConfigTest, AsksAboutTheGpusOfTheRanks) {
  const auto precision_with = [&](const std::string& gpu_ids) {
    accel::testing::write_file(dir_ / "run.yaml",
                               "mixed_precision: fp8\ngpu_ids: '" + gpu_ids + "'\n" + training());
    ConfigRequest request;
    request.file = dir_ / "run.yaml";
    request.visible_gpus = 3;
    request.environment = [](const std::string&) { return std::nullopt; };
    request.compute_capability = [](const std::vector<int>& gpus) {
      return std::find(gpus.begin(), gpus.end(), 0) == gpus.end() ? 9.0 : 8.0;
    };
    return load_config(request).config.mixed_precision;
  };
  EXPECT_EQ(precision_with("1"), "fp8");
  EXPECT_EQ(precision_with("0"), "fp16");
  EXPECT_EQ(precision_with("all"), "fp16");
}

}  // namespace
}  // namespace accel::config
