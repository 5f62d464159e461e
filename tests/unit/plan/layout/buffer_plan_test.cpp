#include "plan/layout/buffer_plan.hpp"

#include <gmock/gmock.h>

#include "base/error.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelStructure mixed() {
  ModelStructure model;
  model.modules = {{"", "Net"}};
  model.parameters = {{{"a.bias"}, {3}, "float32", true},
                      {{"frozen"}, {5}, "bfloat16", false},
                      {{"a.weight"}, {4, 5}, "float32", true},
                      {{"kept"}, {2}, "float32", false},
                      {{"frozen2"}, {1}, "bfloat16", false}};
  return model;
}

const UnitPlan kAll{"", "Net", {0, 1, 2, 3, 4}};

TEST(BufferPlanTest, OneADtypeAndRequiresGradInTheOrderTheyOccur) {
  const auto buffers = plan_buffers(mixed(), kAll, {}, {1, 2});
  ASSERT_EQ(buffers.size(), 3U);
  EXPECT_EQ(buffers[0].dtype, "float32");
  EXPECT_TRUE(buffers[0].trainable);
  EXPECT_THAT(buffers[0].parameters, ElementsAre(0, 2));
  EXPECT_EQ(buffers[1].dtype, "bfloat16");
  EXPECT_FALSE(buffers[1].trainable);
  EXPECT_THAT(buffers[1].parameters, ElementsAre(1, 4));
  EXPECT_THAT(buffers[2].parameters, ElementsAre(3));
}

TEST(BufferPlanTest, ParametersAreInLayoutOrderThoseThatDecayFirst) {
  const auto buffers = plan_buffers(mixed(), kAll, OptimizerPlan({.no_decay = {"bias"}}), {});
  EXPECT_THAT(buffers[0].parameters, ElementsAre(2, 0));
  EXPECT_EQ(buffers[0].layout.parameters[0].spec.fqns.front(), "a.weight");
}

TEST(BufferPlanTest, BytesAreThoseOfWholeAndShardWithPadding) {
  const auto buffers = plan_buffers(mixed(), kAll, {}, {1, 2});
  // 3 elements, 13 of padding, 20 elements; shards are multiples of 16.
  EXPECT_EQ(buffers[0].shard_bytes(), 32U * 4);
  EXPECT_EQ(buffers[0].bytes(), 64U * 4);
  EXPECT_EQ(buffers[1].shard_bytes(), 32U * 2);
}

// The shards of 8-bit moments are blocks of 256 elements. Buffers without such moments are as they were.
TEST(BufferPlanTest, NoShardCutsABlockOfAnEightBitMoment) {
  ModelStructure model = mixed();
  model.parameters[2].shape = {64, 68};
  for (const int shards : {1, 2, 3, 20, 40}) {
    const Mesh mesh{2, shards};
    const auto buffers = plan_buffers(model, kAll, OptimizerPlan({.type = "adamw8bit"}), mesh);
    const FlatLayout& layout = buffers[0].layout;
    EXPECT_EQ(layout.portion_numel() % 256, 0);
    for (const FlatParameter& parameter : layout.parameters) EXPECT_EQ(parameter.offset % 256, 0);
    EXPECT_LT(layout.numel(), 64 * 68 + 256 * (2 + 2 * shards));
    const auto plain = plan_buffers(model, kAll, {}, mesh);
    EXPECT_EQ(buffers[1].layout.shard_numel, plain[1].layout.shard_numel);
  }
  model.parameters[2].shape = {63, 64};  // Too small for 8 bits.
  EXPECT_EQ(plan_buffers(model, kAll, OptimizerPlan({.type = "adamw8bit"}), {1, 3})[0].layout.shard_numel,
            plan_buffers(model, kAll, {}, {1, 3})[0].layout.shard_numel);
}

TEST(BufferPlanTest, TrainableParametersAreFloat32) {
  ModelStructure model = mixed();
  model.parameters[1].requires_grad = true;
  try {
    (void)plan_buffers(model, kAll, {}, {1, 2});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.message(), HasSubstr("'frozen' requires grad and is bfloat16"));
  }
  model = mixed();
  model.parameters[3].dtype = "qint8";
  EXPECT_THROW((void)plan_buffers(model, kAll, {}, {1, 2}), Error);
}

TEST(BufferPlanTest, WhatMakesSixteenBitsTrainableIsFsdpWithMixedPrecision) {
  ModelStructure model = mixed();
  model.parameters[1].requires_grad = true;
  const auto hint_of = [&](const config::PrecisionConfig& precision) {
    try {
      (void)plan_buffers(model, kAll, {}, {1, 2}, precision);
    } catch (const Error& error) {
      return error.advice();
    }
    return std::string("no error");
  };
  for (const char* autocast : {"", "bfloat16"}) {
    EXPECT_THAT(hint_of({.autocast_dtype = autocast}),
                HasSubstr("distributed_type: FSDP and mixed_precision: bf16"));
  }
  EXPECT_EQ(hint_of({.param_dtype = "bfloat16"}), "no error");
}

TEST(BufferPlanTest, BatchNormsComputeInFloat32InVersion1) {
  ModelStructure model;
  model.modules = {{"", "Net"}, {"norm", "BatchNorm2d"}, {"linear", "Linear"}};
  model.parameters = {{{"norm.weight"}, {4}, "float32"}, {{"linear.weight"}, {4, 4}, "float32"}};
  const UnitPlan unit{.parameters = {0, 1}};
  config::PrecisionConfig version_1{.param_dtype = "bfloat16", .reduce_dtype = "bfloat16"};
  EXPECT_EQ(plan_buffers(model, unit, {}, {1, 2}, version_1).size(), 1U);
  version_1.buffer_dtype = "bfloat16";
  const auto buffers = plan_buffers(model, unit, {}, {1, 2}, version_1);
  ASSERT_EQ(buffers.size(), 2U);
  for (const BufferPlan& buffer : buffers) {
    const bool norm = buffer.layout.parameters.front().spec.fqns.front() == "norm.weight";
    EXPECT_EQ(buffer.compute_dtype, norm ? "float32" : "bfloat16");
    EXPECT_EQ(buffer.reduce_dtype, norm ? "float32" : "bfloat16");
  }
}

}  // namespace
}  // namespace accel
