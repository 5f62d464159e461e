#include "plan/memory/step_memory.hpp"

#include <gtest/gtest.h>

namespace accel {
namespace {

constexpr std::uint64_t kRoot = 1000;
constexpr std::uint64_t kLayer = 10;

StepUnit unit_of(std::uint64_t bytes, std::vector<StepUnit> inner = {}) {
  return {{{bytes, bytes}}, std::move(inner)};
}

StepUnit layers(std::size_t count) { return unit_of(kRoot, std::vector<StepUnit>(count, unit_of(kLayer))); }

// FootprintMeasuredTest compares the other layouts with the engine.
TEST(StepMemoryTest, ThreeUnitsAtOnceHoweverManyThereAre) {
  for (const std::size_t count : {4U, 80U}) {
    const StepMemory memory = memory_of_step(layers(count), {});
    EXPECT_EQ(memory.units, 3U);
    EXPECT_EQ(memory.parameter_bytes, kRoot + 2 * kLayer);
    // The gradients of the root, those of the unit in backward, and two that are being reduced.
    EXPECT_EQ(memory.gradient_bytes, kRoot + 3 * kLayer);
    // When a unit is gathered while the one after it is still unsharded, two gradients of its size are being
    // reduced.
    EXPECT_EQ(memory.pool_bytes, 2 * kRoot + 4 * kLayer);
  }
}

TEST(StepMemoryTest, FewUnitsNeedLess) {
  const StepMemory alone = memory_of_step(layers(0), {});
  EXPECT_EQ(alone.units, 1U);
  EXPECT_EQ(alone.pool_bytes, 2 * kRoot);
  EXPECT_EQ(memory_of_step(layers(1), {}).pool_bytes, 2 * kRoot + 2 * kLayer);
  EXPECT_EQ(memory_of_step(layers(2), {}).pool_bytes, 2 * kRoot + 3 * kLayer);
}

TEST(StepMemoryTest, BlocksAreUsedAgainOnlyForBuffersOfTheirSize) {
  StepUnit root = unit_of(kRoot);
  for (std::uint64_t bytes : {1U, 2U, 3U}) root.inner.push_back(unit_of(bytes));
  const StepMemory memory = memory_of_step(root, {});
  EXPECT_EQ(memory.parameter_bytes, kRoot + 2 + 3);
  // One block for the parameters and one for the gradients of each.
  EXPECT_EQ(memory.pool_bytes, 2 * (kRoot + 1 + 2 + 3));
}

TEST(StepMemoryTest, AUnitAroundOthersIsThereWithThem) {
  const StepUnit root = unit_of(kRoot, {unit_of(100, {unit_of(kLayer), unit_of(kLayer)})});
  const StepMemory memory = memory_of_step(root, {});
  EXPECT_EQ(memory.units, 4U);
  EXPECT_EQ(memory.parameter_bytes, kRoot + 100 + 2 * kLayer);
  EXPECT_EQ(memory.gradient_bytes, kRoot + 100 + 2 * kLayer);
}

TEST(StepMemoryTest, GradientsInsideARecomputedUnitWaitForTheEnd) {
  const StepUnit around = unit_of(100, std::vector<StepUnit>(6, unit_of(kLayer)));
  const StepUnit root = unit_of(kRoot, {around});
  EXPECT_EQ(memory_of_step(root, {}).gradient_bytes, kRoot + 100 + 3 * kLayer);
  EXPECT_EQ(memory_of_step(root, {.recompute = true}).gradient_bytes, kRoot + 100 + 6 * kLayer);
  // The copies of recomputed units are not kept in forward.
  EXPECT_EQ(memory_of_step(root, {.reshard_after_forward = false}).units, 8U);
  const StepUnit two = unit_of(kRoot, {around, around});
  EXPECT_EQ(memory_of_step(two, {.reshard_after_forward = false}).units, 15U);
  EXPECT_EQ(memory_of_step(two, {.reshard_after_forward = false, .recompute = true}).units, 9U);
}

/// A layer that autocast copies, with gradients, on one rank.
StepUnit layer_with_casts() {
  StepUnit layer;
  layer.shard_gradient_bytes = 4 * kLayer;
  layer.gradient_temp_bytes = 4 * kLayer;
  layer.cast_bytes = 2 * kLayer;
  return layer;
}

StepUnit layers_with_casts(std::size_t count) {
  StepUnit root;
  root.inner = std::vector<StepUnit>(count, layer_with_casts());
  return root;
}

TEST(StepMemoryTest, CastsGoAsGradientsCome) {
  // At the end there are all gradients and one copy. Until then two bytes of copies are freed for each four
  // bytes of gradients.
  EXPECT_EQ(memory_of_step(layers_with_casts(8), {.one_shard = true}).cast_bytes, 2 * kLayer);
  EXPECT_EQ(memory_of_step(layers_with_casts(8), {.one_shard = true}).gradient_temp_bytes, 4 * kLayer);
}

TEST(StepMemoryTest, CastsAreOnTopOfGradientsThatAreThereBefore) {
  for (const StepOptions& options : {StepOptions{.one_shard = true, .accumulates = true},
                                     StepOptions{.one_shard = true, .keeps_blocks = true}}) {
    EXPECT_EQ(memory_of_step(layers_with_casts(8), options).cast_bytes, 8 * 2 * kLayer);
    EXPECT_EQ(memory_of_step(layers_with_casts(8), options).gradient_temp_bytes, 4 * kLayer);
  }
}

TEST(StepMemoryTest, CastsOfWhatRunsAgainAreOfOneUnitAtOnce) {
  const StepOptions options{.one_shard = true, .keeps_blocks = true, .recompute = true};
  EXPECT_EQ(memory_of_step(layers_with_casts(8), options).cast_bytes, 2 * kLayer);
  // During a recomputation the copies of all units inside exist, except those of units that are recomputed
  // themselves.
  StepUnit outer = layer_with_casts();
  outer.inner.assign(3, layer_with_casts());
  StepUnit root;
  root.inner.assign(4, outer);
  EXPECT_EQ(memory_of_step(root, options).cast_bytes, 2 * 2 * kLayer);
  for (StepUnit& each : root.inner) {
    for (StepUnit& inner : each.inner) inner.recomputes = false;
  }
  EXPECT_EQ(memory_of_step(root, options).cast_bytes, 4 * 2 * kLayer);
}

TEST(StepMemoryTest, AReducedGradientIsThereTwiceWhileItIsConverted) {
  StepUnit root = unit_of(kRoot);
  root.shard_gradient_bytes = kRoot / 2;
  root.gradient_temp_bytes = kLayer;
  EXPECT_EQ(memory_of_step(root, {}).gradient_temp_bytes, 0U);
  root.finalizing_bytes = kRoot / 4;
  EXPECT_EQ(memory_of_step(root, {}).gradient_temp_bytes, kRoot / 4);
}

}  // namespace
}  // namespace accel
