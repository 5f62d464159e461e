#include "plan/linears/tensor_plan.hpp"

#include <gmock/gmock.h>

#include "base/error.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;

using Rules = std::map<std::string, std::string>;

/// A layer of attention and a head that is tied to the table.
ModelStructure model_of_layers() {
  ModelStructure model;
  model.modules = {{"", "Net"},
                   {"model", "Model"},
                   {"model.tokens", "Embedding"},
                   {"model.layers", "ModuleList"},
                   {"model.layers.0", "Layer"},
                   {"model.layers.0.q", "Linear"},
                   {"model.layers.0.q_norm", "Norm"},
                   {"model.layers.0.o", "Linear"},
                   {"head", "Linear"}};
  model.parameters = {{{"model.tokens.weight", "head.weight"}, {64, 32}, "float32"},
                      {{"model.layers.0.q.weight"}, {24, 32}, "float32"},
                      {{"model.layers.0.q.bias"}, {24}, "float32"},
                      {{"model.layers.0.q_norm.weight"}, {8}, "float32"},
                      {{"model.layers.0.o.weight"}, {32, 24}, "float32"},
                      {{"model.layers.0.o.bias"}, {32}, "float32"}};
  return model;
}

const Rules kLayers = {{"layers.*.q", "colwise"},
                       {"layers.*.o", "rowwise"},
                       {"layers.*.q_norm", "replicated_with_grad_allreduce"}};

Rules with(Rules rules, const std::string& pattern, const std::string& style) {
  rules[pattern] = style;
  return rules;
}

std::string error_of(const Rules& rules, int size = 2, ModelStructure model = model_of_layers()) {
  try {
    (void)plan_tensors(model, rules, {}, size);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "no error";
}

TEST(TensorPlanTest, PatternsAreTheEndsOfPaths) {
  EXPECT_TRUE(matches_end("layers.*.q", "model.layers.0.q"));
  EXPECT_TRUE(matches_end("q", "q"));
  EXPECT_TRUE(matches_end("*.q", "layers.q"));
  EXPECT_FALSE(matches_end("*.q", "q"));
  EXPECT_FALSE(matches_end("q", "model.layers.0.q_norm"));
  EXPECT_FALSE(matches_end("q", "model.seq"));
  EXPECT_FALSE(matches_end("layers.*.q", "model.layers.0.attention.q"));
}

TEST(TensorPlanTest, CutsRowsAndColumns) {
  const TensorPlan plan = plan_tensors(model_of_layers(), kLayers, {}, 4);
  EXPECT_EQ(plan.summary(), "3 of 6 parameters are cut among 4 ranks");
  const ModelStructure model = with_tensor_parts(model_of_layers(), plan, 3);
  const auto part = [&](std::size_t i) { return model.parameters[i].part.value(); };
  EXPECT_FALSE(model.parameters[0].part);
  EXPECT_EQ(part(1).dim, 0U);
  EXPECT_EQ(part(1).begin, 18);
  EXPECT_EQ(part(1).whole, 24);
  EXPECT_EQ(local_shape(model.parameters[1]), (std::vector<std::int64_t>{6, 32}));
  EXPECT_EQ(local_shape(model.parameters[2]), (std::vector<std::int64_t>{6}));
  EXPECT_EQ(part(4).dim, 1U);
  EXPECT_EQ(local_shape(model.parameters[4]), (std::vector<std::int64_t>{32, 6}));
  // The bias of a rowwise linear is whole, and added once.
  EXPECT_EQ(local_shape(model.parameters[5]), (std::vector<std::int64_t>{32}));
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(model.parameters[i].sums_gradient, i == 3) << i;
  EXPECT_EQ(model.parameters[1].shape, (std::vector<std::int64_t>{24, 32}));
}

TEST(TensorPlanTest, TakesTheWordsOfTorchAndThoseOfTheNotes) {
  const Rules torch = {{"q", "ColwiseParallel"},
                       {"o", "RowwiseParallel"},
                       {"tokens", "RowwiseParallel"},
                       {"head", "colwise_rep"}};
  const TensorPlan plan = plan_tensors(model_of_layers(), torch, {}, 2);
  ASSERT_EQ(plan.modules.size(), 4U);
  EXPECT_EQ(plan.modules[0].style, TensorStyle::kEmbeddingRowwise);
  EXPECT_EQ(plan.modules[1].style, TensorStyle::kColwise);
  EXPECT_EQ(plan.modules[2].style, TensorStyle::kRowwise);
  EXPECT_EQ(plan.modules[3].style, TensorStyle::kColwiseGather);
  ModelNotes notes;
  notes.tp_plan = {{"layers.*.q", "colwise"}, {"layers.*.nowhere", "rowwise"}};
  EXPECT_EQ(plan_tensors(model_of_layers(), {}, notes, 2).cut_count(), 2U);
  EXPECT_EQ(plan_tensors(model_of_layers(), {{"o", "rowwise"}}, notes, 2).cut_count(), 1U);
  notes.tp_heads = 6;
  EXPECT_EQ(plan_tensors(model_of_layers(), {}, notes, 3).cut_count(), 2U);
  EXPECT_THROW((void)plan_tensors(model_of_layers(), {}, notes, 4), Error);
}

TEST(TensorPlanTest, RefusesByName) {
  EXPECT_EQ(error_of({}), "'parallelism_config.tp_size: 2' needs a plan, and the model file has none");
  EXPECT_EQ(error_of({{"layers.*.k", "colwise"}}),
            "'training.parallel.tp_plan': no module of the model matches 'layers.*.k'");
  EXPECT_EQ(error_of({{"q_norm", "replicated_with_grad_allreduce"}}),
            "'training.parallel.tp_plan' cuts no parameter of the model");
  EXPECT_EQ(error_of({{"q", "moe_tp_experts"}}),
            "'training.parallel.tp_plan': 'q' has the style 'moe_tp_experts', which is not supported");
  EXPECT_EQ(
      error_of({{"q_norm", "colwise"}}),
      "'training.parallel.tp_plan' gives module 'model.layers.0.q_norm' the style colwise, and it has no "
      "weight of two dimensions of its own");
  EXPECT_EQ(error_of(kLayers, 5),
            "'training.parallel.tp_plan' cuts dimension 0 of 'model.layers.0.q.weight', whose size 24 is not "
            "a multiple of parallelism_config.tp_size, 5");
  EXPECT_EQ(error_of(with(kLayers, "head", "colwise_gather_output")),
            "'training.parallel.tp_plan': 'model.tokens.weight' and 'head.weight' are one parameter, which "
            "the plan does not cut alike");
  EXPECT_EQ(error_of(with(kLayers, "tokens", "embedding_rowwise")),
            "'training.parallel.tp_plan': 'model.tokens.weight' and 'head.weight' are one parameter, which "
            "the plan does not cut alike");
  EXPECT_THAT(error_of(with(kLayers, "0.q", "rowwise")),
              HasSubstr("matches module 'model.layers.0.q', to which another pattern gives the style"));
  EXPECT_EQ(error_of({{"q", "embedding_rowwise"}}),
            "'training.parallel.tp_plan': the style embedding_rowwise does not suit module "
            "'model.layers.0.q', which is a Linear");
  EXPECT_EQ(error_of({{"tokens", "colwise"}}),
            "'training.parallel.tp_plan': the style colwise does not suit module 'model.tokens', which is a "
            "Embedding");
  ModelStructure ignoring = model_of_layers();
  ignoring.parameters[4].replicated = true;
  EXPECT_EQ(error_of(kLayers, 2, ignoring),
            "'training.parallel.tp_plan' cuts 'model.layers.0.o.weight', which fsdp_config.ignored_modules "
            "ignores");
}

TEST(TensorPlanTest, ATiedTableIsCutWithItsHead) {
  const Rules rules = {{"tokens", "embedding_rowwise"}, {"head", "colwise_gather_output"}};
  EXPECT_EQ(plan_tensors(model_of_layers(), rules, {}, 2).cuts[0], 0U);
}

}  // namespace
}  // namespace accel
