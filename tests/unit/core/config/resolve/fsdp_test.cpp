#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "core/config/resolve/members.hpp"
#include "core/config/resolve/resolve.hpp"
#include "core/config/settings/settings.hpp"

namespace accel::config {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Settings fsdp(std::string_view keys) {
  return settings_from_yaml(
      parse_yaml("fsdp_config: {" + std::string(keys) + "}\n", {Origin::Layer::kFile, "a.yaml"}));
}

FsdpConfig resolve(const Settings& settings, std::vector<std::string>& warnings) {
  Config config;
  set_members(run_keys(), settings, "a.yaml", config);
  resolve_fsdp(config.fsdp, settings, warnings);
  return config.fsdp;
}

FsdpConfig resolve(std::string_view keys) {
  std::vector<std::string> warnings;
  FsdpConfig config = resolve(fsdp(keys), warnings);
  EXPECT_THAT(warnings, IsEmpty());
  return config;
}

std::string error_of(std::string_view keys) {
  try {
    (void)resolve(keys);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message() + " | " + error.advice();
  }
  return "no error";
}

TEST(ConfigFsdpTest, SizeBasedWrap) {
  const FsdpConfig config = resolve("fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 2000");
  EXPECT_EQ(config.auto_wrap_policy, WrapPolicy::kSize);
  EXPECT_EQ(config.min_num_params, 2000);
  // `accelerate launch` passes on this default.
  EXPECT_EQ(resolve("fsdp_auto_wrap_policy: SIZE_BASED_WRAP").min_num_params, 100'000'000);
}

TEST(ConfigFsdpTest, WarnsOfWhatHasOneWayAlone) {
  const std::pair<const char*, const char*> rows[] = {
      {"fsdp_use_orig_params: false", "a.yaml:1:37: 'fsdp_config.use_orig_params: false' has no effect"},
      {"fsdp_sync_module_states: false", "'fsdp_config.sync_module_states: false' has no effect"},
      {"fsdp_cpu_ram_efficient_loading: false",
       "'fsdp_config.cpu_ram_efficient_loading: false' has no effect"},
      {"fsdp_backward_prefetch: BACKWARD_POST", "BACKWARD_POST' acts as BACKWARD_PRE"}};
  for (const auto& [keys, expected] : rows) {
    std::vector<std::string> warnings;
    (void)resolve(fsdp(keys), warnings);
    ASSERT_THAT(warnings, SizeIs(1)) << keys;
    EXPECT_THAT(warnings.front(), HasSubstr(expected));
  }
}

TEST(ConfigFsdpTest, Version1StrategiesBecomeReshardAfterForward) {
  const std::pair<const char*, bool> rows[] = {{"FULL_SHARD", true},
                                               {"SHARD_GRAD_OP", false},
                                               {"NO_SHARD", false},
                                               {"1", true},
                                               {"2", false},
                                               {"3", false},
                                               {"full_shard", true},
                                               {"HYBRID_SHARD", true},
                                               {"HYBRID_SHARD_ZERO2", false},
                                               {"4", true},
                                               {"5", false}};
  for (const auto& [strategy, reshard] : rows) {
    for (const char* key : {"fsdp_sharding_strategy", "fsdp_reshard_after_forward"}) {
      const std::string keys = std::string(key) + ": " + strategy;
      EXPECT_EQ(resolve(keys).reshard_after_forward, reshard) << keys;
    }
  }
  EXPECT_TRUE(resolve("").reshard_after_forward);
  EXPECT_EQ(resolve("").version, 1);
}

TEST(ConfigFsdpTest, Version2TakesABool) {
  EXPECT_TRUE(resolve("version: 2").reshard_after_forward);
  EXPECT_TRUE(resolve("version: 2, reshard_after_forward: true").reshard_after_forward);
  EXPECT_FALSE(resolve("version: 2, reshard_after_forward: False").reshard_after_forward);
  EXPECT_FALSE(resolve("version: 2, reshard_after_forward: 'false'").reshard_after_forward);
}

TEST(ConfigFsdpTest, ValuesOfTheOtherVersionAreErrors) {
  EXPECT_EQ(error_of("reshard_after_forward: true"),
            "a.yaml:1:38: 'fsdp_config.reshard_after_forward' must be a sharding strategy in FSDP version 1; "
            "found 'true' "
            "| true and false are for fsdp_version: 2");
  EXPECT_EQ(
      error_of("version: 2, reshard_after_forward: FULL_SHARD"),
      "a.yaml:1:50: 'fsdp_config.reshard_after_forward' must be true, false or a number of ranks in FSDP "
      "version 2; found 'FULL_SHARD' | strategies such as FULL_SHARD are for fsdp_version: 1");
  EXPECT_THAT(error_of("sharding_strategy: FULL_SHRAD"), HasSubstr("did you mean 'FULL_SHARD'?"));
  EXPECT_THAT(error_of("sharding_strategy: 6"), HasSubstr("must be a sharding strategy"));
}

TEST(ConfigFsdpTest, Version2TakesANumberOfRanks) {
  const FsdpConfig config = resolve("version: 2, reshard_after_forward: 8");
  EXPECT_TRUE(config.reshard_after_forward);
  EXPECT_EQ(config.reshard_size, 8);
  EXPECT_EQ(resolve("version: 2").reshard_size, 0);
  EXPECT_EQ(
      error_of("version: 2, reshard_after_forward: 1"),
      "a.yaml:1:50: 'fsdp_config.reshard_after_forward: 1' could mean two things | Accelerate takes 1 for "
      "true, fully_shard for false: write one of them");
  EXPECT_THAT(error_of("version: 2, reshard_after_forward: 0"), HasSubstr("write false"));
  for (const char* wrong : {"-2", "2.5", "99999999999"})
    EXPECT_THAT(error_of(std::string("version: 2, reshard_after_forward: ") + wrong),
                HasSubstr("or a number of ranks"));
}

TEST(ConfigFsdpTest, Version1StrategiesSayOverWhichRanks) {
  const auto spread = [](const char* name) {
    return strategy_name(fsdp(std::string("sharding_strategy: ") + name)).spread;
  };
  EXPECT_EQ(spread("FULL_SHARD"), Spread::kAll);
  EXPECT_EQ(spread("2"), Spread::kAll);
  EXPECT_EQ(spread("NO_SHARD"), Spread::kNone);
  EXPECT_EQ(spread("hybrid_shard"), Spread::kMachine);
  EXPECT_EQ(spread("5"), Spread::kMachine);
  EXPECT_EQ(strategy_name(fsdp("version: 1")).name, "FULL_SHARD");
}

TEST(ConfigFsdpTest, TwoSpellingsOfAStrategyMustAgree) {
  EXPECT_FALSE(resolve("sharding_strategy: SHARD_GRAD_OP, reshard_after_forward: 2").reshard_after_forward);
  EXPECT_THAT(
      error_of("sharding_strategy: FULL_SHARD, reshard_after_forward: SHARD_GRAD_OP"),
      HasSubstr(
          "'fsdp_config.reshard_after_forward: SHARD_GRAD_OP' contradicts 'fsdp_config.sharding_strategy: "
          "FULL_SHARD'"));
}

TEST(ConfigFsdpTest, AStrategyUnderVersion2IsAWarning) {
  std::vector<std::string> warnings;
  EXPECT_TRUE(resolve(fsdp("version: 2, sharding_strategy: SHARD_GRAD_OP"), warnings).reshard_after_forward);
  EXPECT_THAT(warnings, SizeIs(1));
}

TEST(ConfigFsdpTest, IgnoredModulesAreARegularExpression) {
  EXPECT_EQ(resolve("version: 2").ignored_modules, "");
  EXPECT_EQ(resolve("fsdp_ignored_modules: 'model\\.(embed|head)'").ignored_modules, "model\\.(embed|head)");
  EXPECT_THAT(error_of("ignored_modules: 'h.(0'"),
              HasSubstr("'fsdp_config.ignored_modules': the pattern 'h.(0' is not valid: missing )"));
}

TEST(ConfigFsdpTest, WrapPolicyAndClasses) {
  const FsdpConfig config =
      resolve("auto_wrap_policy: TRANSFORMER_BASED_WRAP, transformer_layer_cls_to_wrap: 'A,B'");
  EXPECT_EQ(config.auto_wrap_policy, WrapPolicy::kTransformer);
  EXPECT_EQ(config.transformer_layer_cls_to_wrap, (std::vector<std::string>{"A", "B"}));
}

}  // namespace
}  // namespace accel::config
