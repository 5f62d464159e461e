#include "plan/units/embedding_and_head_units.hpp"

#include <gmock/gmock.h>

#include "plan/small_gpt.hpp"
#include "plan/units/unit_plan.hpp"

namespace accel {
namespace {

using fixtures::gpt;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

config::FsdpConfig blocks(int version = 2) {
  config::FsdpConfig config;
  config.version = version;
  config.auto_wrap_policy = config::WrapPolicy::kTransformer;
  config.transformer_layer_cls_to_wrap = {"Block"};
  return config;
}

ModelStructure untied() {
  ModelStructure model = gpt();
  model.parameters[0].fqns = {"tokens.weight"};
  model.parameters.push_back({{"head.weight"}, {8, 4}, "float32"});
  return model;
}

EmbeddingAndHeadUnits units_of(const ModelStructure& model,
                               const std::vector<std::string>& wrapped = {"blocks.0"}) {
  return embedding_and_head_units(model, blocks(), wrapped);
}

TEST(EmbeddingAndHeadUnitsTest, AnEmbeddingAndAHeadOfTheSameShape) {
  EXPECT_THAT(units_of(untied()).embeddings, ElementsAre("tokens"));
  EXPECT_THAT(units_of(untied()).heads, ElementsAre("head"));
}

TEST(EmbeddingAndHeadUnitsTest, NoneInVersionOneOrWhereNothingIsWrapped) {
  EXPECT_THAT(embedding_and_head_units(untied(), blocks(1), {"blocks.0"}).embeddings, IsEmpty());
  EXPECT_THAT(units_of(untied(), {}).embeddings, IsEmpty());
}

TEST(EmbeddingAndHeadUnitsTest, TiedCrossUnitAndWrappedOnesAreNone) {
  EXPECT_THAT(units_of(gpt()).embeddings, IsEmpty());
  EXPECT_THAT(units_of(gpt()).heads, IsEmpty());
  ModelStructure shared = untied();
  shared.parameters.front().fqns.emplace_back("blocks.0.tokens.weight");
  EXPECT_THAT(units_of(shared).embeddings, IsEmpty());
  ModelStructure cross_unit = untied();
  cross_unit.parameters.back().cross_unit = true;
  EXPECT_THAT(units_of(cross_unit).embeddings, IsEmpty());
  EXPECT_THAT(units_of(untied(), {"blocks.0", "head"}).embeddings, IsEmpty());
  ModelStructure inside = untied();
  inside.modules.back().name = "blocks.0.head";
  inside.parameters.back().fqns = {"blocks.0.head.weight"};
  EXPECT_THAT(units_of(inside).embeddings, IsEmpty());
}

TEST(EmbeddingAndHeadUnitsTest, ALinearOfAnotherShapeIsNoHead) {
  ModelStructure model = untied();
  model.parameters.back().shape = {4, 8};
  EXPECT_THAT(units_of(model).embeddings, IsEmpty());
  EXPECT_THAT(units_of(model).heads, IsEmpty());
}

TEST(EmbeddingAndHeadUnitsTest, TheHeadStaysGatheredAndNeitherRunsAgain) {
  const auto units = plan_units(untied(), blocks());
  ASSERT_EQ(units.size(), 7U);
  EXPECT_EQ(units[0].module, "tokens");
  EXPECT_FALSE(units[0].stays_gathered);
  EXPECT_FALSE(units[0].checkpoints);
  EXPECT_FALSE(units[1].stays_gathered);
  EXPECT_TRUE(units[1].checkpoints);
  EXPECT_EQ(units[5].module, "head");
  EXPECT_EQ(units[5].parameters, std::vector<std::size_t>{5});
  EXPECT_TRUE(units[5].stays_gathered);
  EXPECT_FALSE(units[5].checkpoints);
  EXPECT_TRUE(units[6].parameters.empty());
}

}  // namespace
}  // namespace accel
