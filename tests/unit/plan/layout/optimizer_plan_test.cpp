#include "plan/layout/optimizer_plan.hpp"

#include <gmock/gmock.h>

#include "base/error.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> stored(const OptimizerGroup& group) {
  std::vector<std::string> names;
  for (const StateTensor& tensor : group.tensors) names.push_back(tensor.full_name());
  return names;
}

const OptimizerGroup& group_for(const OptimizerPlan& plan, const std::string& name,
                                const std::vector<std::int64_t>& shape) {
  return plan.groups().at(plan.group_of({name}, shape));
}

TEST(OptimizerPlanTest, WithoutSettingsItIsAdamWWithTorchsDefaults) {
  const OptimizerPlan plan;
  const OptimizerGroup& group = group_for(plan, "a.bias", {3});
  EXPECT_EQ(group.type, "adamw");
  EXPECT_EQ(group.lr, 1e-3);
  EXPECT_EQ(group.options.weight_decay, 0.01);
  EXPECT_EQ(group.options.eps, 1e-8);
  EXPECT_TRUE(group.counts_steps);
  EXPECT_THAT(stored(group), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_EQ(plan.optimizers(), 1U);
}

TEST(OptimizerPlanTest, WhatIsStoredFollowsTheOptions) {
  const auto first = [](const config::OptimizerConfig& config) {
    return OptimizerPlan(config).groups().front();
  };
  EXPECT_THAT(stored(first({.type = "sgd"})), ElementsAre());
  EXPECT_FALSE(first({.type = "sgd"}).counts_steps);
  EXPECT_THAT(stored(first({.type = "sgd", .options = {.momentum = 0.9}})), ElementsAre("momentum_buffer"));
  EXPECT_THAT(stored(first({.type = "adam", .options = {.amsgrad = true}})),
              ElementsAre("exp_avg", "exp_avg_sq", "max_exp_avg_sq"));
  EXPECT_THAT(stored(first({.type = "rmsprop", .options = {.momentum = 0.9, .centered = true}})),
              ElementsAre("square_avg", "momentum_buffer", "grad_avg"));
  const OptimizerGroup adagrad = first({.type = "adagrad", .options = {.initial_accumulator_value = 0.5}});
  ASSERT_EQ(adagrad.tensors.size(), 1U);
  EXPECT_EQ(adagrad.tensors[0].initial, 0.5);
}

TEST(OptimizerPlanTest, MuonIsAdamWForWhatIsNoMatrix) {
  const OptimizerPlan plan({.type = "muon", .lr = 0.02, .options = {.eps = 1e-6}, .no_decay = {"bias"}});
  const OptimizerGroup& matrix = group_for(plan, "w", {3, 4});
  EXPECT_EQ(matrix.type, "muon");
  EXPECT_EQ(matrix.options.weight_decay, 0.1);
  const OptimizerGroup& bias = group_for(plan, "bias", {3});
  EXPECT_EQ(bias.type, "adamw");
  EXPECT_EQ(bias.options.weight_decay, 0);
  EXPECT_EQ(bias.options.eps, 1e-6);
  EXPECT_EQ(group_for(plan, "cube", {1, 2, 3}).options.weight_decay, 0.1);
  EXPECT_EQ(bias.lr, 0.02);
  EXPECT_NE(matrix.optimizer, bias.optimizer);
  EXPECT_EQ(plan.optimizers(), 2U);
}

TEST(OptimizerPlanTest, AdafactorStoresRowsAndColumnsOfWhatHasThem) {
  const OptimizerPlan plan({.type = "adafactor", .options = {.weight_decay = 0.5}, .no_decay = {"bias"}});
  const OptimizerGroup& matrix = group_for(plan, "w", {3, 4});
  EXPECT_THAT(stored(matrix), ElementsAre("row_var", "col_var"));
  EXPECT_TRUE(matrix.counts_steps);
  EXPECT_EQ(matrix.options.eps, 1.1920928955078125e-07);  // torch.finfo(torch.float32).eps
  EXPECT_EQ(plan.group_of({"cube"}, {2, 3, 4}), plan.group_of({"w"}, {3, 4}));
  const OptimizerGroup& vector = group_for(plan, "v", {3});
  EXPECT_THAT(stored(vector), ElementsAre("variance"));
  EXPECT_THAT(stored(group_for(plan, "scalar", {})), ElementsAre("variance"));
  // torch has one optimizer with a param_group for each weight decay.
  EXPECT_EQ(plan.optimizers(), 1U);
  EXPECT_EQ(vector.param_group, matrix.param_group);
  EXPECT_EQ(group_for(plan, "bias", {3}).param_group, group_for(plan, "bias", {3, 4}).param_group);
  EXPECT_NE(group_for(plan, "bias", {3}).param_group, matrix.param_group);
}

TEST(OptimizerPlanTest, EightBitsAreForLargeParametersThatFillTheirBlocks) {
  const OptimizerPlan plan({.type = "adamw8bit"});
  const OptimizerGroup& large = group_for(plan, "w", {64, 64});
  EXPECT_THAT(stored(large),
              ElementsAre("exp_avg.codes", "exp_avg.scale", "exp_avg_sq.codes", "exp_avg_sq.scale"));
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{63, 64}, {4097}, {}}) {
    const OptimizerGroup& small = group_for(plan, "w", shape);
    EXPECT_THAT(stored(small), ElementsAre("exp_avg", "exp_avg_sq"));
    EXPECT_EQ(small.param_group, large.param_group);
  }
  EXPECT_TRUE(large.counts_steps);
  EXPECT_EQ(large.options.weight_decay, 0.01);
  EXPECT_EQ(state_bytes_of(large.tensors, {64, 64}), 2 * (4096 + 4096 / 256 * 4));
}

TEST(OptimizerPlanTest, TheFirstGroupThatMatchesAnyNameCounts) {
  config::OptimizerConfig config{.lr = 0.1, .no_decay = {"norm"}};
  config.groups = {{.match = "^head", .lr = 0.5},
                   {.match = "norm", .weight_decay = 0.25},
                   {.match = "w$", .optimizer = "sgd"},
                   {.match = "x", .frozen = true}};
  const OptimizerPlan plan(config);
  EXPECT_EQ(group_for(plan, "head.norm", {1}).lr, 0.5);
  EXPECT_EQ(group_for(plan, "head.norm", {1}).options.weight_decay, 0);
  EXPECT_EQ(group_for(plan, "a.norm", {1}).options.weight_decay, 0.25);
  EXPECT_EQ(group_for(plan, "a.w", {1}).type, "sgd");
  EXPECT_EQ(group_for(plan, "a.w", {1}).options.weight_decay, 0);  // SGD's own.
  EXPECT_EQ(group_for(plan, "a.w", {1}).lr, 0.1);
  EXPECT_EQ(plan.groups()[plan.group_of({"tokens", "head.weight"}, {1})].lr, 0.5);
  EXPECT_TRUE(plan.freezes({"x"}));
  EXPECT_FALSE(plan.freezes({"a.w"}));

  ModelStructure model;
  for (const char* name : {"head", "norm", "w", "x"}) model.parameters.push_back({{name}, {2}, "float32"});
  const ModelStructure frozen = with_frozen(model, plan);
  EXPECT_TRUE(frozen.parameters[0].requires_grad);
  EXPECT_FALSE(frozen.parameters[3].requires_grad);
  model.parameters.pop_back();
  try {
    (void)with_frozen(model, plan);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.message(), HasSubstr("'x'"));
  }
}

TEST(OptimizerPlanTest, AnUnknownTypeIsNamed) {
  try {
    OptimizerPlan({.type = "sgd9"});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.message(), HasSubstr("'sgd9'"));
  }
}

// Both shards have 32 elements. The second has 16 with two tensors and 16 with one.
TEST(StateBytesTest, AreThoseOfTheShardThatStoresMost) {
  config::OptimizerConfig config;
  config.groups = {{.match = "b", .optimizer = "lion"}};
  const OptimizerPlan plan(config);
  const auto spec = [&](const char* name, std::int64_t numel) {
    return ParameterSpec{{name}, {numel}, plan.group_of({name}, {numel})};
  };
  const FlatLayout layout = make_flat_layout({spec("a", 16), spec("b", 48)}, 4, Mesh{1, 2});
  ASSERT_EQ(layout.shard_numel, 32);
  EXPECT_EQ(state_bytes(layout, plan), (16 + 2 * 16) * 4U);
}

// Every rank has the 5 + 8 means of the matrix. The vector's 32 elements lie in the second shard.
TEST(StateBytesTest, AreThoseOfAllRowsAndColumnsOnEachRank) {
  const OptimizerPlan plan({.type = "adafactor"});
  const auto spec = [&](const char* name, std::vector<std::int64_t> shape) {
    return ParameterSpec{{name}, shape, plan.group_of({name}, shape)};
  };
  const FlatLayout layout = make_flat_layout({spec("v", {32}), spec("w", {5, 8})}, 4, Mesh{1, 2});
  ASSERT_EQ(layout.shard_numel, 48);
  ASSERT_EQ(layout.parameters[0].spec.fqns.front(), "w");
  EXPECT_EQ(state_bytes(layout, plan), (5 + 8 + 48) * 4U);
}

}  // namespace
}  // namespace accel
