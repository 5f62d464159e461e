#include "plan/linears/linear_plan.hpp"

#include <gmock/gmock.h>

#include "base/error.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Linears beside modules that are none. `gate` is of a class derived from Linear, `out` is tied to the
/// table.
ModelStructure model_of_linears() {
  ModelStructure model;
  model.modules = {{"", "Net"},
                   {"tokens", "Embedding"},
                   {"first", "Linear"},
                   {"mix", "Bilinear"},
                   {"conv", "Conv1D"},
                   {"block", "Block"},
                   {"block.up", "Linear"},
                   {"block.odd", "Linear"},
                   {"gate", "GateLinear"},
                   {"lora", "Linear"},
                   {"out", "Linear"}};
  model.parameters = {{{"tokens.weight", "out.weight"}, {64, 32}, "float32"},
                      {{"first.weight"}, {32, 32}, "float32"},
                      {{"mix.weight"}, {16, 16, 16}, "float32"},
                      {{"conv.weight"}, {32, 32}, "float32"},
                      {{"block.up.weight"}, {48, 32}, "float32"},
                      {{"block.up.bias"}, {48}, "float32"},
                      {{"block.odd.weight"}, {32, 24}, "float32"},
                      {{"gate.weight"}, {16, 48}, "float32"},
                      {{"lora.base.weight"}, {16, 16}, "float32"}};
  return model;
}

std::vector<std::string> float8_of(const LinearPlan& plan) {
  std::vector<std::string> modules;
  for (const PlannedLinear& linear : plan.linears) {
    if (linear.is_float8()) modules.push_back(linear.module);
  }
  return modules;
}

TEST(LinearPlanTest, LeavesTheFirstTheLastAndOddSizes) {
  const LinearPlan plan = plan_linears(model_of_linears(), {});
  EXPECT_THAT(float8_of(plan), ElementsAre("block.up", "gate"));
  ASSERT_EQ(plan.linears.size(), 5U);
  EXPECT_EQ(plan.linears[0].kept_reason, "it is the first linear");
  EXPECT_EQ(plan.linears[2].kept_reason, "its sizes are not multiples of 16");
  EXPECT_EQ(plan.linears[4].kept_reason, "it is the last linear");
  EXPECT_EQ(plan.summary(), "2 of 5 linears compute in float8");
  EXPECT_EQ(plan.warning(), "");
}

TEST(LinearPlanTest, AFilterTakesThePlaceOfTheFirstAndTheLast) {
  config::Float8Config config;
  config.filter = {"up", "gate"};
  const LinearPlan plan = plan_linears(model_of_linears(), config);
  EXPECT_THAT(float8_of(plan), ElementsAre("first", "out"));
  EXPECT_EQ(plan.linears[1].kept_reason, "training.float8.filter has 'up'");
  config.filter = {"up", "hade"};
  try {
    (void)plan_linears(model_of_linears(), config);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.message(), HasSubstr("the name of no linear of the model contains 'hade'"));
  }
}

TEST(LinearPlanTest, SaysThatNothingIsConverted) {
  ModelStructure model = model_of_linears();
  for (ParameterInfo& parameter : model.parameters) parameter.shape.back() += 1;
  const LinearPlan none = plan_linears(model, {});
  EXPECT_THAT(float8_of(none), IsEmpty());
  EXPECT_EQ(
      none.warning(),
      "nothing computes in float8: of the model's 5 linears none is chosen; 'first': it is the first linear");
  model.modules.resize(2);
  EXPECT_THAT(plan_linears(model, {}).warning(),
              HasSubstr("nothing computes in float8: the model has no linears"));
}

// The engine finds no product of its weight. In another module the class is a linear as any other.
TEST(LinearPlanTest, LeavesTheOutputProjectionOfMultiheadAttention) {
  ModelStructure model;
  model.modules = {{"", "Net"},
                   {"first", "Linear"},
                   {"attention", "MultiheadAttention"},
                   {"attention.out_proj", "NonDynamicallyQuantizableLinear"},
                   {"alone", "NonDynamicallyQuantizableLinear"},
                   {"last", "Linear"}};
  for (const char* name : {"first", "attention.out_proj", "alone", "last"})
    model.parameters.push_back({{std::string(name) + ".weight"}, {16, 16}, "float32"});
  const LinearPlan plan = plan_linears(model, {});
  EXPECT_THAT(float8_of(plan), ElementsAre("alone"));
  EXPECT_EQ(plan.linears[1].kept_reason, "its code has no product of its weight");
  EXPECT_EQ(plan.summary(), "1 of 4 linears compute in float8");
}

/// A linear `b` with a second name in the same module, and a block with a second name in another module.
TEST(LinearPlanTest, CountsALinearWithSeveralNamesOnce) {
  ModelStructure model;
  model.modules = {{"", "Net"},        {"a", "Linear"},      {"b", "Linear"},         {"c", "Linear"},
                   {"d", "Linear"},    {"left", "Left"},     {"left.x", "Block"},     {"left.x.up", "Linear"},
                   {"right", "Right"}, {"right.x", "Block"}, {"right.x.up", "Linear"}};
  model.parameters = {{{"a.weight"}, {16, 16}, "float32"},
                      {{"b.weight", "d.weight"}, {16, 16}, "float32"},
                      {{"b.bias", "d.bias"}, {16}, "float32"},
                      {{"c.weight"}, {16, 16}, "float32"},
                      {{"left.x.up.weight", "right.x.up.weight"}, {16, 16}, "float32"},
                      {{"right.own"}, {16}, "float32"}};
  config::Float8Config config;
  config.filter = {"a"};
  LinearPlan plan = plan_linears(model, config);
  EXPECT_THAT(float8_of(plan), ElementsAre("b", "c", "left.x.up", "right.x.up"));
  EXPECT_EQ(plan.summary(), "3 of 4 linears compute in float8");
  EXPECT_EQ(plan.linears[3].kept_reason, "it is another name of 'b', and torchao replaces the first name");
  // The last linear is 'c', and not 'd'.
  model.modules.resize(5);
  plan = plan_linears(model, {});
  EXPECT_THAT(float8_of(plan), ElementsAre("b"));
  EXPECT_EQ(plan.linears[2].kept_reason, "it is the last linear");
  // Two linears with one weight have biases of their own.
  model.parameters[2].fqns.pop_back();
  model.parameters.push_back({{"d.bias"}, {16}, "float32"});
  EXPECT_THAT(float8_of(plan_linears(model, {})), ElementsAre("b", "c"));
}

}  // namespace
}  // namespace accel
