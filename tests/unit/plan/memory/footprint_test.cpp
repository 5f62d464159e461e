#include "plan/memory/footprint.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/error.hpp"
#include "plan/layout/flat_layout.hpp"
#include "plan/linears/tensor_plan.hpp"
#include "plan/small_gpt.hpp"

namespace accel {
namespace {

using fixtures::gpt;

config::FsdpConfig blocks() {
  config::FsdpConfig config;
  config.auto_wrap_policy = config::WrapPolicy::kTransformer;
  config.transformer_layer_cls_to_wrap = {"Block"};
  return config;
}

Footprint footprint(const ModelStructure& model, FootprintOptions options) {
  return footprint_of(model, plan_units(model, blocks()), options);
}

// Every parameter takes 16 elements or 32 in its flat buffer, as it begins on a boundary of 64 bytes.
TEST(FootprintTest, CountsEachUnit) {
  const Footprint two = footprint(gpt(), {.mesh = {1, 2}});
  ASSERT_EQ(two.units.size(), 5U);
  const UnitFootprint& block = two.units[0];
  EXPECT_EQ(block.module, "blocks.0");
  EXPECT_EQ(block.class_name, "Block");
  EXPECT_EQ(block.parameters, 1U);
  EXPECT_EQ(block.elements, 16);
  EXPECT_EQ(block.trainable, 16);
  EXPECT_EQ(block.padded_elements, 32);  // Two shards of one boundary each.
  EXPECT_EQ(block.shard_bytes, 64U);
  EXPECT_EQ(block.gradient_bytes, 64U);
  EXPECT_EQ(block.optimizer_bytes, 128U);
  EXPECT_EQ(block.unsharded_bytes, 128U);
  EXPECT_EQ(block.gather_bytes, 2U * 64);  // Forward and backward.
  EXPECT_EQ(block.reduce_bytes, 64U);
  const UnitFootprint& root = two.units[4];
  EXPECT_EQ(root.elements, 32);
  EXPECT_EQ(root.shard_bytes, 64U);
  EXPECT_EQ(root.gather_bytes, 64U);
  EXPECT_EQ(two.memory.shard_bytes, 5U * 64);
  EXPECT_EQ(two.memory.optimizer_bytes, 10U * 64);
  EXPECT_EQ(two.memory.unsharded_units, 4U);  // blocks.1 has another unit inside.
}

TEST(FootprintTest, OneRankSharesItsShardAndSendsNothing) {
  const Footprint one = footprint(gpt(), {.mesh = {1, 1}, .replicated_bytes = 7});
  EXPECT_EQ(one.memory.unsharded_bytes, 0U);
  EXPECT_EQ(one.gather_bytes, 0U);
  EXPECT_EQ(one.reduce_bytes, 0U);
  EXPECT_EQ(one.memory.shard_bytes, (4U * 16 + 32) * 4);
  EXPECT_EQ(one.memory.gradient_temp_bytes, 3U * 128);
  EXPECT_EQ(one.memory.total_bytes, 4 * one.memory.shard_bytes + 7 + 3U * 128);
}

TEST(FootprintTest, GradientsThatArriveComeOnTopOfThoseThatAreThere) {
  // The root's gradients come last, when those of the four other units are reduced. Its own 64 bytes of five
  // times 64 are not.
  EXPECT_EQ(footprint(gpt(), {.mesh = {1, 2}}).memory.gradient_temp_bytes, 3U * 128 - 64);
  ModelStructure untied = gpt();
  untied.parameters[0].fqns.pop_back();
  EXPECT_EQ(footprint(untied, {.mesh = {1, 2}}).memory.gradient_temp_bytes, 128U - 64);
  // A frozen tied parameter has no gradient. The 64 bytes of blocks.0 come when three other units are
  // reduced.
  untied.parameters[0].requires_grad = false;
  EXPECT_EQ(footprint(untied, {.mesh = {1, 2}}).memory.gradient_temp_bytes, 0U);
  const auto mixed = footprint(gpt(), {.mesh = {1, 2}, .precision = {"bfloat16", "float32"}});
  EXPECT_EQ(mixed.memory.gradient_temp_bytes, 3U * 64 - 128);
}

TEST(FootprintTest, GradientsOfACompiledLayerArriveAtOnce) {
  ModelStructure model = gpt();
  model.parameters = {{{"tokens.weight"}, {4}, "float32"},
                      {{"blocks.0.up.weight"}, {64}, "float32"},
                      {{"blocks.0.up.bias"}, {32}, "float32"},
                      {{"blocks.0.frozen"}, {64}, "float32", false},
                      {{"blocks.10.weight"}, {64}, "float32"}};
  const auto most = [&](std::set<std::string> layers) {
    return footprint(model, {.mesh = {1, 1}, .compiled_layers = std::move(layers)})
        .memory.gradient_temp_bytes;
  };
  EXPECT_EQ(most({}), 64U * 4);
  EXPECT_EQ(most({"blocks.0", "blocks.10"}), (64U + 32) * 4);
  EXPECT_EQ(most({"blocks.10"}), 64U * 4);
}

TEST(FootprintTest, TrafficFollowsReshardingMicroBatchesAndRecomputation) {
  const auto gathers = [](FootprintOptions options) {
    options.mesh = {1, 2};
    std::vector<std::uint64_t> counts;
    for (const UnitFootprint& unit : footprint(gpt(), options).units)
      counts.push_back(unit.gather_bytes / unit.shard_bytes);
    return counts;
  };
  // In the order blocks.0, blocks.1.inner, blocks.1, blocks.10, the root.
  using ::testing::ElementsAre;
  EXPECT_THAT(gathers({}), ElementsAre(2, 2, 2, 2, 1));
  EXPECT_THAT(gathers({.reshard_after_forward = false}), ElementsAre(1, 1, 1, 1, 1));
  EXPECT_THAT(gathers({.micro_batches = 3}), ElementsAre(6, 6, 6, 6, 3));
  EXPECT_THAT(gathers({.activation_checkpointing = true}), ElementsAre(2, 3, 2, 2, 1));
  EXPECT_EQ(footprint(gpt(), {.mesh = {1, 2}, .micro_batches = 3}).reduce_bytes, 5U * 64);
}

TEST(FootprintTest, ReplicasAverageTheirShards) {
  const Footprint four = footprint(gpt(), {.mesh = {2, 2}});
  const UnitFootprint& block = four.units[0];
  EXPECT_EQ(block.padded_elements, 64);
  EXPECT_EQ(block.shard_bytes, 128U);
  EXPECT_EQ(block.gather_bytes, 2U * 128);
  EXPECT_EQ(block.reduce_bytes, 128U);
  EXPECT_EQ(block.average_bytes, 128U);  // An all-reduce sends one of two parts twice.
  EXPECT_EQ(four.average_bytes, 5U * 128);
  EXPECT_EQ(footprint(gpt(), {.mesh = {1, 2}}).average_bytes, 0U);
  const Footprint alone = footprint(gpt(), {.mesh = {2, 1}});
  EXPECT_EQ(alone.gather_bytes, 0U);
  EXPECT_EQ(alone.reduce_bytes, 0U);
  EXPECT_EQ(alone.memory.unsharded_bytes, 0U);
  EXPECT_EQ(alone.units[0].average_bytes, 128U);
}

TEST(FootprintTest, WhatAGroupKeepsIsGatheredFromIt) {
  const auto gathers = [](FootprintOptions options) {
    options.mesh = {1, 4};
    options.reshard_size = 2;
    return footprint(gpt(), options).units[0].gather_bytes;
  };
  // Of 256 bytes a rank sends three quarters over all four ranks and half over two.
  EXPECT_EQ(gathers({}), 192U + 128);
  EXPECT_EQ(gathers({.micro_batches = 3}), 3 * (192U + 128));
  EXPECT_EQ(gathers({.reshard_after_forward = false}), 192U);
  const Footprint four = footprint(gpt(), {.mesh = {1, 4}, .reshard_size = 2});
  EXPECT_EQ(four.units.back().gather_bytes, 192U);  // The root stays gathered.
  EXPECT_EQ(four.memory.group_shard_bytes, 4U * 128);
}

TEST(FootprintTest, WhatLiesOnTheHostIsNotOnTheDevice) {
  const MemoryFootprint two = footprint(gpt(), {.mesh = {1, 2}, .stored_on_host = true}).memory;
  EXPECT_EQ(two.host_bytes, 5U * 64 * 4);  // The shard, its gradient and two moments.
  EXPECT_EQ(two.copy_bytes,
            4U * 64);  // Two gradients that are being reduced, and two that are copied to the host.
  EXPECT_EQ(two.unsharded_bytes, footprint(gpt(), {.mesh = {1, 2}}).memory.unsharded_bytes);
  EXPECT_EQ(two.gradient_temp_bytes, 3U * 128);
  EXPECT_EQ(two.total_bytes, two.unsharded_bytes + two.copy_bytes + two.gradient_temp_bytes);
  const MemoryFootprint four = footprint(gpt(), {.mesh = {2, 2}, .stored_on_host = true}).memory;
  EXPECT_EQ(four.copy_bytes, 5U * 128);  // Of all units: up to six are allowed.
  // The shard holds no unsharded tensors any more. The root and two units are unsharded, and as many
  // gradients.
  const MemoryFootprint one = footprint(gpt(), {.stored_on_host = true}).memory;
  EXPECT_EQ(one.host_bytes, (4U * 16 + 32) * 4 * 4);
  EXPECT_EQ(one.copy_bytes, 0U);
  EXPECT_GE(one.unsharded_parameter_bytes, (2U * 16 + 32) * 4);
  EXPECT_EQ(one.total_bytes, one.unsharded_bytes + one.gradient_temp_bytes);
  EXPECT_EQ(footprint(gpt(), {.mesh = {1, 2}}).memory.host_bytes, 0U);
}

TEST(FootprintTest, FrozenParametersHaveNeitherGradientNorState) {
  ModelStructure model = gpt();
  model.parameters[1].requires_grad = false;
  const Footprint two = footprint(model, {.mesh = {1, 2}});
  EXPECT_EQ(two.units[0].elements, 16);
  EXPECT_EQ(two.units[0].trainable, 0);
  EXPECT_EQ(two.units[0].gradient_bytes, 0U);
  EXPECT_EQ(two.units[0].optimizer_bytes, 0U);
  EXPECT_EQ(two.units[0].reduce_bytes, 0U);
  EXPECT_EQ(two.units[0].shard_bytes, 64U);
}

TEST(FootprintTest, ACheckpointOfAnAdapterHasNoFrozenParameters) {
  ModelStructure model = gpt();
  model.parameters[1].requires_grad = false;
  const Footprint all = footprint(model, {.mesh = {1, 2}});
  const Footprint adapter = footprint(model, {.mesh = {1, 2}, .adapter_only = true});
  EXPECT_EQ(adapter.checkpoint_bytes, all.checkpoint_bytes - 16 * 4);
}

// tokens.weight and head.weight are one parameter, which the model's state has twice.
TEST(FootprintTest, ACheckpointHasTiedParametersTwiceAndTheirStateOnce) {
  constexpr std::uint64_t kModel = (2 * 32 + 16 + 4 + 4 + 4) * 4;
  constexpr std::uint64_t kMoments = 2 * (32 + 16 + 4 + 4 + 4) * 4;
  constexpr std::uint64_t kSteps = 5 * 4;
  const Footprint one = footprint(gpt(), {.persistent_bytes = 9});
  EXPECT_EQ(one.checkpoint_bytes, kModel + kMoments + kSteps + 9);
  EXPECT_EQ(one.checkpoint_rank_bytes, one.checkpoint_bytes);
  const Footprint none = footprint(gpt(), {.optimizer = OptimizerPlan({.type = "sgd"})});
  EXPECT_EQ(none.checkpoint_bytes, kModel);
  EXPECT_EQ(none.memory.optimizer_bytes, 0U);
}

TEST(FootprintTest, EightBitMomentsTakeAByteAndAScaleForEachBlock) {
  ModelStructure model = gpt();
  model.parameters[1].shape = {80, 64};
  constexpr std::uint64_t kLarge = 80 * 64;
  for (const Mesh& mesh : {Mesh{1, 1}, Mesh{1, 3}, Mesh{2, 3}}) {
    const auto with = [&](const char* type) {
      return footprint(model, {.mesh = mesh, .optimizer = OptimizerPlan({.type = type})});
    };
    const Footprint codes = with("adamw8bit");
    const Footprint floats = with("adamw");
    EXPECT_EQ(floats.checkpoint_bytes - codes.checkpoint_bytes, 2 * (kLarge * 3 - kLarge / 256 * 4));
    const UnitFootprint& unit = codes.units[0];
    ASSERT_EQ(unit.elements, static_cast<std::int64_t>(kLarge));
    EXPECT_EQ(unit.optimizer_bytes, 2 * (unit.shard_bytes / 4 + unit.shard_bytes / 256));
  }
}

// Rank 0 writes the means of all rows and columns; the variances of vectors are cut.
TEST(FootprintTest, ACheckpointHasTheRowsAndColumnsOfAdafactor) {
  ModelStructure model = gpt();
  model.parameters[0].shape = {4, 8};
  const OptimizerPlan adafactor({.type = "adafactor"});
  const auto bytes = [&](const Mesh& mesh, const OptimizerPlan& plan) {
    return footprint(model, {.mesh = mesh, .optimizer = plan}).checkpoint_bytes;
  };
  std::uint64_t numbers = 0;
  for (const ParameterInfo& parameter : model.parameters) {
    const std::vector<std::int64_t>& shape = parameter.shape;
    numbers += static_cast<std::uint64_t>(shape.size() < 2 ? shape[0] : shape[0] + shape[1]) + 1;
  }
  for (const int shards : {1, 2, 3}) {
    const Mesh mesh{1, shards};
    EXPECT_EQ(bytes(mesh, adafactor) - bytes(mesh, OptimizerPlan({.type = "sgd"})), numbers * 4);
  }
}

RC_GTEST_PROP(FootprintTest, RanksWriteTogetherWhatTheirPiecesAre, ()) {
  ModelStructure model = gpt();
  for (ParameterInfo& parameter : model.parameters) parameter.shape = {*rc::gen::inRange(0, 200)};
  const Mesh mesh{*rc::gen::inRange(1, 4), *rc::gen::inRange(1, 9)};
  const Footprint result = footprint(model, {.mesh = mesh, .optimizer = OptimizerPlan({.type = "sgd"})});
  std::uint64_t total = 0;
  std::uint64_t most = 0;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::uint64_t bytes = 0;
    for (const UnitPlan& unit : plan_units(model, blocks())) {
      std::vector<ParameterSpec> specs;
      for (const std::size_t index : unit.parameters)
        specs.push_back({model.parameters[index].fqns, model.parameters[index].shape, 0});
      const FlatLayout layout = make_flat_layout(specs, 4, mesh);
      for (const ShardPiece& piece : portion_pieces(layout, mesh.place_of(rank)))
        bytes += static_cast<std::uint64_t>(piece.in_parameter.size()) * 4 *
                 layout.parameters[piece.parameter].spec.fqns.size();
    }
    total += bytes;
    most = std::max(most, bytes);
  }
  RC_ASSERT(result.checkpoint_bytes == total);
  RC_ASSERT(result.checkpoint_rank_bytes == most);
}

TEST(FootprintTest, TensorParallelismCutsMemoryAndTheSameCheckpointIsWritten) {
  ModelStructure model = gpt();
  model.parameters[1].shape = {4096, 64};
  const Footprint whole = footprint(model, {.mesh = {1, 2}});
  const TensorPlan plan = plan_tensors(model, {{"up", "colwise"}}, {}, 4);
  const Footprint cut = footprint(with_tensor_parts(model, plan, 1), {.mesh = {1, 2, 1, 4}});
  ASSERT_EQ(whole.units[0].module, "blocks.0");
  EXPECT_EQ(cut.units[0].shard_bytes * 4, whole.units[0].shard_bytes);
  EXPECT_EQ(cut.units[0].optimizer_bytes * 4, whole.units[0].optimizer_bytes);
  EXPECT_EQ(cut.units[0].gather_bytes * 4, whole.units[0].gather_bytes);
  EXPECT_EQ(cut.units[1].shard_bytes, whole.units[1].shard_bytes);
  EXPECT_EQ(cut.checkpoint_bytes, whole.checkpoint_bytes);
  EXPECT_LT(cut.checkpoint_rank_bytes, whole.checkpoint_rank_bytes);
}

TEST(FootprintTest, ASizeThatOverflowsIsAnError) {
  ModelStructure model = gpt();
  model.parameters[1].shape = {std::int64_t{1} << 40, std::int64_t{1} << 22};
  EXPECT_THROW((void)footprint(model, {.mesh = {1, 2}}), Error);
}

}  // namespace
}  // namespace accel
