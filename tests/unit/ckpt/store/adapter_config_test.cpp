#include "ckpt/store/adapter_config.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

class AdapterConfigTest : public ::testing::Test {
 protected:
  AdapterConfig read(const std::string& text) {
    write_file(dir_ / "adapter_config.json", text);
    return read_adapter_config(dir_ / "adapter_config.json");
  }
  // Reads the configuration of a LoRA adapter with `more` settings, such as R"("use_dora": true)".
  AdapterConfig with(const std::string& more) {
    return read(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 4)" + (more.empty() ? "" : ", " + more) + "}");
  }

  TempDir dir_;
};

TEST_F(AdapterConfigTest, TheScalingIsAlphaByTheRankOrItsRoot) {
  EXPECT_EQ(with("").scaling_of("q_proj"), 0.5);
  EXPECT_EQ(with(R"("use_rslora": true)").scaling_of("q_proj"), 4 / std::sqrt(8.0));
  EXPECT_TRUE(with(R"("fan_in_fan_out": true)").fan_in_fan_out);
  EXPECT_EQ(with(R"("use_rslora": null, "fan_in_fan_out": null)").scaling_of("q_proj"), 0.5);
}

// The expected values are those of PEFT's get_pattern_key, which tries
// re.match(rf"(.*\.)?({key})$", module) for each key.
TEST_F(AdapterConfigTest, PatternsMatchAWholeNameOrWhatFollowsADot) {
  const AdapterConfig config = with(
      R"("rank_pattern": {"v_proj": 2, "layers.1.mlp": 16}, "alpha_pattern": {"^model.*k_proj": 6, "a|b": 3})");
  EXPECT_EQ(config.rank_of("model.layers.0.v_proj"), 2);
  EXPECT_EQ(config.rank_of("v_proj"), 2);
  EXPECT_EQ(config.rank_of("model.layers.0.my_v_proj"), 8);
  EXPECT_EQ(config.rank_of("model.layers.0.v_proj.inner"), 8);
  EXPECT_EQ(config.rank_of("model.layers.1.mlp"), 16);
  EXPECT_EQ(config.scaling_of("model.layers.0.k_proj"), 6 / 8.0);
  EXPECT_EQ(config.scaling_of("x.b"), 3 / 8.0);
  EXPECT_EQ(config.scaling_of("x.v_proj"), 4 / 2.0);
}

TEST_F(AdapterConfigTest, WhatIsNotPlainLoraIsRefused) {
  EXPECT_THAT(
      error_of(ErrorKind::kFailure,
               [&] {
                 (void)read(R"({"fine_tune_type": "lora", "lora_parameters": {"rank": 8, "scale": 20.0}})");
               }),
      HasSubstr("is of an adapter of MLX"));
  const auto refusal = [&](const std::string& text) {
    return error_of(ErrorKind::kFailure, [&] { (void)with(text); });
  };
  EXPECT_THAT(refusal(R"("use_dora": true)"), HasSubstr("the adapter has the setting use_dora = true"));
  EXPECT_THAT(refusal(R"("layer_replication": [[0, 2]])"), HasSubstr("layer_replication = [[0,2]]"));
  EXPECT_THAT(refusal(R"("of_the_future": "x")"), HasSubstr(R"(of_the_future = "x")"));
  EXPECT_THAT(refusal(R"("init_lora_weights": "olora")"), HasSubstr("init_lora_weights is 'olora'"));
  EXPECT_NO_THROW((void)with(
      R"("use_dora": false, "of_the_future": null, "other": [], "more": {}, "init_lora_weights": "gaussian")"));
  EXPECT_THAT(
      error_of(ErrorKind::kFailure, [&] { (void)read(R"({"peft_type": "IA3", "r": 8, "lora_alpha": 1})"); }),
      HasSubstr("the adapter is of the type IA3"));
}

TEST_F(AdapterConfigTest, WhatIsMalformedIsRefused) {
  const auto refusal = [&](const std::string& text) {
    return error_of(ErrorKind::kCorrupt, [&] { (void)read(text); });
  };
  EXPECT_THAT(refusal("{"), HasSubstr("adapter_config.json' cannot be read"));
  EXPECT_THAT(refusal("[]"), HasSubstr("cannot be read"));
  EXPECT_THAT(refusal(R"({"peft_type": "LORA"})"), HasSubstr("'r'"));
  EXPECT_THAT(refusal(R"({"peft_type": "LORA", "r": 0, "lora_alpha": 1})"),
              HasSubstr("'r' is 0, not a positive whole number"));
  EXPECT_THAT(refusal(R"({"peft_type": "LORA", "r": "8", "lora_alpha": 1})"), HasSubstr("must be number"));
  EXPECT_THAT(refusal(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 1, "rank_pattern": {"a": "b"}})"),
              HasSubstr("must be number"));
}

}  // namespace
}  // namespace accel::ckpt
