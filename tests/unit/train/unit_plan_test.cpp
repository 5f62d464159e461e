#include "train/fsdp/unit_plan.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace accel::train {
namespace {

ModelStructure gpt() {
  ModelStructure model;
  model.modules = {{"", "GPT"},
                   {"tokens", "Embedding"},
                   {"blocks", "ModuleList"},
                   {"blocks.0", "Block"},
                   {"blocks.0.up", "Linear"},
                   {"blocks.1", "Block"},
                   {"blocks.1.inner", "Block"},
                   {"blocks.10", "Block"},
                   {"head", "Linear"}};
  model.parameters = {{{"tokens.weight", "head.weight"}, {8, 4}, "float32"},
                      {{"blocks.0.up.weight"}, {4, 4}, "float32"},
                      {{"blocks.1.scale"}, {4}, "float32"},
                      {{"blocks.1.inner.weight"}, {4}, "float32"},
                      {{"blocks.10.weight"}, {4}, "float32"}};
  return model;
}

core::FsdpConfig wrap(std::vector<std::string> classes) {
  core::FsdpConfig config;
  config.auto_wrap_policy = core::WrapPolicy::kTransformer;
  config.transformer_layer_cls_to_wrap = std::move(classes);
  return config;
}

TEST(UnitPlanTest, PostOrderWithTheRootLast) {
  const auto units = plan_units(gpt(), wrap({"Block"}));
  std::vector<std::string> names;
  for (const UnitPlan& unit : units) names.push_back(unit.module);
  EXPECT_EQ(names, (std::vector<std::string>{"blocks.0", "blocks.1.inner", "blocks.1", "blocks.10", ""}));
}

TEST(UnitPlanTest, TheInnermostUnitOwns) {
  const auto units = plan_units(gpt(), wrap({"Block"}));
  EXPECT_EQ(units[0].parameters, std::vector<std::size_t>{1});
  EXPECT_EQ(units[1].parameters, std::vector<std::size_t>{3});
  EXPECT_EQ(units[2].parameters, std::vector<std::size_t>{2});
  EXPECT_EQ(units[3].parameters,
            std::vector<std::size_t>{4});  // Not blocks.1's: "blocks.10" only begins like it.
  EXPECT_EQ(units[4].parameters, std::vector<std::size_t>{0});
}

TEST(UnitPlanTest, SharedAndForeignParametersBelongToTheRoot) {
  ModelStructure model = gpt();
  model.parameters[1].fqns.push_back("blocks.1.tied.weight");
  model.parameters[3].foreign = true;
  const auto units = plan_units(model, wrap({"Block"}));
  EXPECT_EQ(units.back().parameters, (std::vector<std::size_t>{0, 1, 3}));
}

TEST(UnitPlanTest, TiedWithinOneUnitStaysThere) {
  ModelStructure model = gpt();
  model.parameters[2].fqns.push_back("blocks.1.again");
  EXPECT_EQ(plan_units(model, wrap({"Block"}))[2].parameters, std::vector<std::size_t>{2});
}

TEST(UnitPlanTest, NoWrapIsTheRootAlone) {
  const auto units = plan_units(gpt(), {});
  ASSERT_EQ(units.size(), 1u);
  EXPECT_EQ(units[0].parameters.size(), 5u);
}

TEST(UnitPlanTest, AnUnknownClassNamesTheOnesThereAre) {
  try {
    (void)plan_units(gpt(), wrap({"LlamaDecoderLayer"}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("LlamaDecoderLayer"), std::string::npos);
    EXPECT_NE(error.advice().find("Block, Embedding, GPT"), std::string::npos) << error.advice();
  }
}

TEST(UnitPlanTest, NothingToTrainIsAnError) {
  ModelStructure model = gpt();
  for (ParameterInfo& parameter : model.parameters) parameter.requires_grad = false;
  EXPECT_THROW((void)plan_units(model, {}), Error);
}

TEST(UnitPlanTest, TransformerWrapNeedsClasses) { EXPECT_THROW((void)plan_units(gpt(), wrap({})), Error); }

}  // namespace
}  // namespace accel::train
