#include "plan/units/ignored_modules.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include "base/error.hpp"
#include "plan/layout/buffer_plan.hpp"
#include "plan/memory/footprint.hpp"
#include "plan/small_gpt.hpp"
#include "plan/units/embedding_and_head_units.hpp"
#include "plan/units/unit_plan.hpp"
#include "plan/units/wrap_policy.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Only the parameters of the block with two digits and the first tied parameter are trained.
ModelStructure gpt() {
  ModelStructure model = fixtures::gpt();
  for (const std::size_t index : {1U, 2U, 3U}) model.parameters[index].requires_grad = false;
  return model;
}

std::vector<std::string> ignored_in(const ModelStructure& model) {
  std::vector<std::string> names;
  for (const ModuleInfo& module : model.modules) {
    if (module.ignored) names.push_back(module.name);
  }
  for (const ParameterInfo& parameter : model.parameters) {
    if (parameter.replicated) names.push_back(parameter.fqns.front());
  }
  return names;
}

std::string error_of(const ModelStructure& model, const std::string& pattern) {
  try {
    (void)with_ignored(model, pattern);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message() + " | " + error.advice();
  }
  return "no error";
}

config::FsdpConfig blocks() {
  config::FsdpConfig config;
  config.version = 2;
  config.auto_wrap_policy = config::WrapPolicy::kTransformer;
  config.transformer_layer_cls_to_wrap = {"Block"};
  return config;
}

TEST(IgnoredModulesTest, WholeNamesWithAllThatIsInside) {
  EXPECT_THAT(ignored_in(with_ignored(gpt(), "blocks.1")),
              ElementsAre("blocks.1", "blocks.1.inner", "blocks.1.scale", "blocks.1.inner.weight"));
  EXPECT_THAT(ignored_in(with_ignored(gpt(), R"(.*\.(inner|up))")),
              ElementsAre("blocks.0.up", "blocks.1.inner", "blocks.0.up.weight", "blocks.1.inner.weight"));
  EXPECT_THAT(ignored_in(with_ignored(gpt(), "")), IsEmpty());
}

TEST(IgnoredModulesTest, AParameterIsIgnoredByAnyOfItsNames) {
  ModelStructure model = gpt();
  model.parameters[0].requires_grad = false;
  EXPECT_THAT(ignored_in(with_ignored(model, "head")), ElementsAre("head", "tokens.weight"));
}

TEST(IgnoredModulesTest, TheWholeModelMayBeIgnored) {
  ModelStructure model = gpt();
  for (ParameterInfo& parameter : model.parameters) parameter.requires_grad = false;
  EXPECT_EQ(ignored_in(with_ignored(model, ".*")).size(), model.modules.size() + model.parameters.size());
}

TEST(IgnoredModulesTest, AnUnmatchedPatternNamesModulesNearIt) {
  EXPECT_THAT(error_of(gpt(), "inner"),
              HasSubstr("'inner' matches the full name of no module | names near it: blocks.1.inner"));
  EXPECT_THAT(error_of(gpt(), "haed"), HasSubstr("| names near it: head"));
  EXPECT_THAT(error_of(gpt(), "something_else"), HasSubstr("| names near it: tokens, blocks, blocks.0, "));
  ModelStructure large = gpt();
  for (int i = 0; i < 20; ++i) large.modules.push_back({"x" + std::to_string(i), "X"});
  EXPECT_THAT(error_of(large, "something_else"), HasSubstr("blocks.10, head, ..."));
}

TEST(IgnoredModulesTest, TrainedOnesAreWholeWithTheirStateAndAveragedOverAllRanks) {
  const ModelStructure model = with_ignored(gpt(), "blocks.10");
  const auto footprint = [&](bool stored_on_host) {
    return footprint_of(model, plan_units(model, blocks()),
                        {.mesh = {2, 4}, .stored_on_host = stored_on_host});
  };
  const UnitFootprint root = footprint(false).units.back();
  // Four elements, padded to 64 bytes; AdamW has two moments of each.
  EXPECT_EQ(root.replicated_bytes, 64U);
  EXPECT_EQ(root.replicated_training_bytes, 3 * 64U);
  EXPECT_EQ(root.average_bytes, 2 * 7 * 8U + 2 * root.shard_bytes / 2);
  EXPECT_EQ(root.gradient_bytes, root.shard_bytes + 64);
  EXPECT_EQ(root.optimizer_bytes, 2 * root.gradient_bytes);

  // Replicated parameters are not offloaded.
  const Footprint plain = footprint(false);
  const Footprint offloaded = footprint(true);
  EXPECT_EQ(offloaded.memory.host_bytes + 3 * 64,
            plain.memory.shard_bytes + plain.memory.optimizer_bytes + plain.memory.gradient_bytes);
  EXPECT_GE(offloaded.memory.total_bytes, 4 * 64 + offloaded.memory.unsharded_bytes);
}

TEST(IgnoredModulesTest, AreNoUnits) {
  const ModelStructure model = with_ignored(gpt(), R"(blocks\.1|blocks\.0\.up)");
  EXPECT_THAT(wrapped_modules(model, blocks()), ElementsAre("blocks.0", "blocks.10"));
  config::FsdpConfig by_size = blocks();
  by_size.auto_wrap_policy = config::WrapPolicy::kSize;
  by_size.min_num_params = 7;
  // Version 2 counts replicated parameters, version 1 does not.
  EXPECT_THAT(wrapped_modules(model, by_size), ElementsAre("tokens", "blocks.0", "head"));
  by_size.version = 1;
  by_size.min_num_params = 8;
  EXPECT_THAT(wrapped_modules(model, by_size), ElementsAre("tokens", "head"));

  ModelStructure untied = gpt();
  untied.parameters[0].fqns = {"tokens.weight"};
  untied.parameters[0].requires_grad = false;
  untied.parameters.push_back({{"head.weight"}, {8, 4}, "float32"});
  EXPECT_THAT(embedding_and_head_units(untied, blocks(), {"blocks.0"}).heads, ElementsAre("head"));
  EXPECT_THAT(embedding_and_head_units(with_ignored(untied, "tokens"), blocks(), {"blocks.0"}).heads,
              IsEmpty());
}

TEST(IgnoredModulesTest, HaveABufferThatIsNotCut) {
  const ModelStructure model = with_ignored(gpt(), "blocks.0.up");
  const auto buffers = plan_buffers(model, plan_units(model, blocks())[0], {}, {1, 8});
  ASSERT_EQ(buffers.size(), 1U);
  EXPECT_TRUE(buffers[0].replicated);
  EXPECT_EQ(buffers[0].layout.mesh.size(), 1);
  EXPECT_EQ(buffers[0].shard_bytes(), 64U);
}

TEST(IgnoredModulesTest, AreWholeOnEveryRankAndNeverSent) {
  const auto footprint = [](const std::string& pattern) {
    const ModelStructure model = with_ignored(gpt(), pattern);
    return footprint_of(model, plan_units(model, blocks()), {.mesh = {1, 8}, .replicated_bytes = 100});
  };
  const Footprint with = footprint("blocks.0.up");
  const Footprint without = footprint("");
  EXPECT_EQ(with.units[0].elements, 16);
  EXPECT_EQ(with.units[0].replicated_bytes, 64U);
  EXPECT_EQ(with.units[0].shard_bytes, 0U);
  EXPECT_EQ(with.units[0].unsharded_bytes, 0U);
  EXPECT_EQ(with.memory.replicated_bytes, 164U);
  EXPECT_EQ(with.memory.shard_bytes, without.memory.shard_bytes - without.units[0].shard_bytes);
  EXPECT_EQ(with.gather_bytes, without.gather_bytes - without.units[0].gather_bytes);
  EXPECT_LT(with.memory.unsharded_bytes, without.memory.unsharded_bytes + 1);
  EXPECT_EQ(with.checkpoint_bytes, without.checkpoint_bytes);
}

}  // namespace
}  // namespace accel
