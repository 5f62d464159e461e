#include "plan/units/unit_plan.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "plan/small_gpt.hpp"

namespace accel {
namespace {

using fixtures::gpt;

config::FsdpConfig wrap(std::vector<std::string> classes) {
  config::FsdpConfig config;
  config.auto_wrap_policy = config::WrapPolicy::kTransformer;
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

TEST(UnitPlanTest, SharedAndCrossUnitParametersBelongToTheRoot) {
  ModelStructure model = gpt();
  model.parameters[1].fqns.push_back("blocks.1.tied.weight");
  model.parameters[3].cross_unit = true;
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

TEST(UnitPlanTest, NothingToTrainIsAnError) {
  ModelStructure model = gpt();
  for (ParameterInfo& parameter : model.parameters) parameter.requires_grad = false;
  EXPECT_THROW((void)plan_units(model, {}), Error);
}

TEST(UnitPlanTest, NoUnitIsInsideACompiledLayer) {
  const auto units = plan_units(gpt(), wrap({"Block"}));
  require_no_unit_inside({"blocks.0", "blocks.1.inner", "blocks.10"}, units);
  try {
    require_no_unit_inside({"blocks.0", "blocks.1"}, units);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.message(),
              "'blocks.1' runs compiled code, and nothing gathers the unit 'blocks.1.inner' inside it");
  }
}

}  // namespace
}  // namespace accel
