#include "plan/linears/float8_gather.hpp"

#include <gmock/gmock.h>

#include "base/error.hpp"
#include "plan/layout/buffer_plan.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;

/// A block of two linears between a first and a last one. `again` is another path of the block.
ModelStructure model_of_linears() {
  ModelStructure model;
  model.modules = {{"", "Net"},        {"tokens", "Embedding"}, {"first", "Linear"},
                   {"block", "Block"}, {"block.up", "Linear"},  {"block.down", "Linear"},
                   {"again", "Block"}, {"again.up", "Linear"},  {"again.down", "Linear"},
                   {"last", "Linear"}};
  model.parameters = {{{"tokens.weight"}, {64, 32}, "float32"},
                      {{"first.weight"}, {32, 32}, "float32"},
                      {{"block.up.weight", "again.up.weight"}, {48, 32}, "float32"},
                      {{"block.up.bias", "again.up.bias"}, {48}, "float32"},
                      {{"block.down.weight", "again.down.weight"}, {32, 48}, "float32"},
                      {{"last.weight"}, {64, 32}, "float32"}};
  return model;
}

std::vector<std::string> gathered_in(const ModelStructure& model) {
  std::vector<std::string> names;
  for (const ParameterInfo& parameter : model.parameters) {
    if (parameter.gathers_float8) names.push_back(parameter.fqns.front());
  }
  return names;
}

ModelStructure marked(const ModelStructure& model, const ModelStructure& apart) {
  return with_float8_gather(model, plan_linears(model, {}), apart);
}

std::string error_of(const ModelStructure& model, const ModelStructure& apart) {
  try {
    (void)marked(model, apart);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.advice(), kWithoutFloat8Gather);
    return error.message();
  }
  return "no error";
}

TEST(Float8GatherTest, MarksTheWeightsOfFloat8Linears) {
  ModelStructure model = model_of_linears();
  EXPECT_THAT(gathered_in(marked(model, model)), ElementsAre("block.up.weight", "block.down.weight"));
  // Parameters of ignored modules are not gathered.
  model.parameters[4].replicated = true;
  EXPECT_THAT(gathered_in(marked(model, model)), ElementsAre("block.up.weight"));
}

TEST(Float8GatherTest, RefusesAWeightThatIsTiedToAnotherModules) {
  ModelStructure model = model_of_linears();
  model.parameters[0] = {{"tokens.weight", "block.down.weight", "again.down.weight"}, {32, 48}, "float32"};
  model.parameters.erase(model.parameters.begin() + 4);
  EXPECT_EQ(error_of(model, model),
            "the weight of 'block.down' is to be gathered in float8, and is tied to 'tokens.weight'; torchao "
            "would train two separate weights");
  // Another bias makes another linear of `again.up`, which has the same weight.
  model = model_of_linears();
  model.parameters[3].fqns = {"block.up.bias"};
  model.parameters.push_back({{"again.up.bias"}, {48}, "float32"});
  EXPECT_EQ(error_of(model, model),
            "the weight of 'block.up' is to be gathered in float8, and is tied to 'again.up.weight'; torchao "
            "would train two separate weights");
}

// torchao replaces the first of two names in one module, and the other name keeps a weight of its own.
TEST(Float8GatherTest, RefusesASecondNameInTheSameModule) {
  ModelStructure model;
  model.modules = {
      {"", "Net"}, {"first", "Linear"}, {"up", "Linear"}, {"again", "Linear"}, {"last", "Linear"}};
  model.parameters = {{{"first.weight"}, {32, 32}, "float32"},
                      {{"up.weight", "again.weight"}, {32, 32}, "float32"},
                      {{"last.weight"}, {64, 32}, "float32"}};
  EXPECT_EQ(
      error_of(model, model),
      "the weight of 'up' is to be gathered in float8, and is tied to 'again.weight'; torchao would train "
      "two separate weights");
}

TEST(Float8GatherTest, RefusesAWeightThatOtherCodeReads) {
  const ModelStructure model = model_of_linears();
  ModelStructure apart = model;
  apart.parameters[1].cross_unit = true;  // The weight of `first` is not gathered in float8.
  EXPECT_EQ(error_of(model, apart), "no error");
  apart.parameters[2].cross_unit = true;
  EXPECT_EQ(error_of(model, apart),
            "the weight of 'block.up' is to be gathered in float8, and the code of another module reads it");
}

TEST(Float8GatherTest, TheWeightsHaveABufferOfTheirOwn) {
  const ModelStructure plain = model_of_linears();
  const ModelStructure model = marked(plain, plain);
  const UnitPlan all{"", "Net", {0, 1, 2, 3, 4, 5}};
  const config::PrecisionConfig precision{.param_dtype = "bfloat16", .reduce_dtype = "bfloat16"};
  const auto buffers = plan_buffers(model, all, {}, {1, 2}, precision);
  ASSERT_EQ(buffers.size(), 2U);
  EXPECT_FALSE(buffers[0].gathers_float8());
  const BufferPlan& weights = buffers[1];
  EXPECT_TRUE(weights.gathers_float8());
  EXPECT_THAT(weights.parameters, ElementsAre(2, 4));
  EXPECT_THAT((std::vector{weights.dtype, weights.compute_dtype, weights.gather_dtype, weights.reduce_dtype}),
              ElementsAre("float32", "bfloat16", "float8_e4m3fn", "bfloat16"));
  constexpr std::uint64_t kElements = 2 * 48 * 32;
  EXPECT_EQ(weights.bytes(), kElements);
  EXPECT_EQ(weights.gradient_bytes(), 2 * kElements);
  EXPECT_EQ(weights.shard_bytes(), 4 * kElements / 2);
  // One shard is cast, too.
  EXPECT_FALSE(plan_buffers(model, all, {}, {}, precision)[1].is_alias());
  // Without mixed precision nothing is.
  EXPECT_EQ(plan_buffers(model, all, {}, {1, 2}).size(), 1U);
}

}  // namespace
}  // namespace accel
