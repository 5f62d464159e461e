#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "data/batch_plan.hpp"
#include "data/sample_order.hpp"

namespace accel {
namespace {

TEST(SampleOrderTest, IsAPermutation) {
  EXPECT_TRUE(rc::check("every sample occurs once", [] {
    const auto size = *rc::gen::inRange<std::int64_t>(1, 600);
    const SampleOrder order(size, true, *rc::gen::arbitrary<std::uint64_t>(),
                            *rc::gen::inRange<std::int64_t>(0, 9));
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < size; ++i) {
      RC_ASSERT(order.at(i) >= 0);
      RC_ASSERT(order.at(i) < size);
      seen.insert(order.at(i));
    }
    RC_ASSERT(seen.size() == static_cast<std::size_t>(size));
  }));
}

TEST(SampleOrderTest, DependsOnSeedAndEpoch) {
  const auto sequence = [](std::uint64_t seed, std::int64_t epoch) {
    const SampleOrder order(1000, true, seed, epoch);
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < 1000; ++i) values.push_back(order.at(i));
    return values;
  };
  EXPECT_EQ(sequence(1, 2), sequence(1, 2));
  EXPECT_NE(sequence(1, 2), sequence(1, 3));
  EXPECT_NE(sequence(1, 2), sequence(2, 2));
}

TEST(SampleOrderTest, LooksRandom) {
  // The mean distance of neighbours in a random permutation of n is (n + 1) / 3, with a deviation of about
  // 0.24 n / sqrt(n).
  const std::int64_t size = 10'000;
  const SampleOrder order(size, true, 42, 0);
  double sum = 0;
  for (std::int64_t i = 1; i < size; ++i) sum += static_cast<double>(std::abs(order.at(i) - order.at(i - 1)));
  EXPECT_NEAR(sum / static_cast<double>(size - 1), static_cast<double>(size) / 3, 120);
}

TEST(SampleOrderTest, WithoutShuffleIsFileOrder) {
  const SampleOrder order(5, false, 42, 3);
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(order.at(i), i);
}

/// Steps are counted one by one, as a training takes them.
TEST(BatchPlanTest, EpochsAreThoseOfTheStepsThatATrainingTakes) {
  EXPECT_TRUE(rc::check("epochs and steps", [] {
    const int data_size = *rc::gen::inRange(1, 4);
    const BatchPlan plan{.samples = *rc::gen::inRange<std::int64_t>(12, 60),
                         .batch_size = *rc::gen::inRange<std::int64_t>(1, 4),
                         .data_size = data_size,
                         .drop_last = *rc::gen::arbitrary<bool>()};
    const auto accumulated = *rc::gen::inRange<std::int64_t>(1, 4);
    const std::int64_t micro_batches = plan.steps();
    const std::int64_t taken = micro_batches * plan.batch_size * data_size;
    RC_ASSERT(plan.epoch_samples() == taken);
    std::int64_t steps = 0;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      for (std::int64_t done = 0; done < micro_batches;) {
        done = std::min(done + accumulated, micro_batches);
        ++steps;
        const double expected =
            static_cast<double>(epoch) + static_cast<double>(done) / static_cast<double>(micro_batches);
        RC_ASSERT(std::abs(plan.epochs_after(steps, accumulated) - expected) < 1e-12);
      }
      RC_ASSERT(steps == (epoch + 1) * plan.steps_per_epoch(accumulated));
    }
  }));
}

/// Micro-batches are taken one by one from a place in the data, as a training does that goes on there.
TEST(BatchPlanTest, StepsAreLeftUntilTheEpochsAreDone) {
  EXPECT_TRUE(rc::check("steps that are left", [] {
    const BatchPlan plan{.samples = *rc::gen::inRange<std::int64_t>(12, 60),
                         .batch_size = *rc::gen::inRange<std::int64_t>(1, 4),
                         .data_size = *rc::gen::inRange(1, 4),
                         .drop_last = *rc::gen::arbitrary<bool>()};
    const auto accumulated = *rc::gen::inRange<std::int64_t>(1, 4);
    const auto epochs = *rc::gen::inRange<std::int64_t>(1, 4);
    const auto first = *rc::gen::inRange<std::int64_t>(0, 4);
    const auto done = *rc::gen::inRange<std::int64_t>(0, 64);  // A completed batch may exceed the samples.
    const std::int64_t taken = plan.batch_size * plan.data_size;
    std::int64_t steps = 0;
    for (std::int64_t epoch = first; epoch < epochs; ++epoch) {
      std::int64_t micro_batches = 0;
      for (std::int64_t left = plan.samples - (epoch == first ? done : 0); left > 0; left -= taken) {
        if (left < taken && plan.drop_last) break;
        if (micro_batches++ % accumulated == 0) ++steps;
      }
    }
    RC_ASSERT(plan.steps_until(epochs, first, done, accumulated) == steps);
  }));
}

TEST(BatchPlanTest, AnEpochGoesOnOnAnyNumberOfRanks) {
  // Ten of the 50 samples are done. The rest, on three ranks, are cut into batches from there.
  BatchPlan plan{50, 2, 3, false, 10};
  EXPECT_EQ(plan.steps(), 7);  // The last of 40 samples take 6, 6, 6, 6, 6, 6 and 4 of 6.
  std::vector<std::int64_t> seen;
  for (std::int64_t step = 0; step < plan.steps(); ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      for (const std::int64_t position : plan.positions(step, rank)) seen.push_back(position);
    }
  }
  std::vector<std::int64_t> expected;
  for (std::int64_t i = 10; i < 50; ++i) expected.push_back(i);
  for (std::int64_t i = 0; i < 2; ++i) expected.push_back(i);  // They complete the last batch.
  EXPECT_EQ(seen, expected);
  plan.drop_last = true;
  EXPECT_EQ(plan.steps(), 6);
  plan.begin = 50;
  EXPECT_EQ(plan.steps(), 0);
  plan.begin = 52;  // A batch was completed.
  EXPECT_EQ(plan.steps(), 0);
}

/// Accelerate 1.15's BatchSamplerShard._iter_with_no_split over a BatchSampler, with even_batches, as its
/// source has it.
std::vector<std::vector<std::int64_t>> accelerate_shard(std::int64_t samples, std::int64_t batch_size,
                                                        int processes, int index, bool drop_last) {
  using Samples = std::vector<std::int64_t>;
  std::vector<Samples> batches;
  for (std::int64_t begin = 0; begin < samples; begin += batch_size) {
    Samples batch;
    for (std::int64_t i = begin; i < std::min(begin + batch_size, samples); ++i) batch.push_back(i);
    if (static_cast<std::int64_t>(batch.size()) == batch_size || !drop_last) batches.push_back(batch);
  }
  std::vector<Samples> result;
  Samples initial;
  Samples mine;
  std::size_t idx = 0;
  Samples batch;
  for (idx = 0; idx < batches.size(); ++idx) {
    batch = batches[idx];
    if (!drop_last && static_cast<int>(idx) < processes)
      initial.insert(initial.end(), batch.begin(), batch.end());
    if (static_cast<int>(idx % processes) == index) mine = batch;
    if (static_cast<int>(idx % processes) == processes - 1 &&
        static_cast<std::int64_t>(batch.size()) == batch_size) {
      result.push_back(mine);
      mine.clear();
    }
  }
  if (drop_last || initial.empty()) return result;
  if (static_cast<std::int64_t>(mine.size()) == batch_size) result.push_back(mine);
  while (initial.size() < static_cast<std::size_t>(batch_size * processes)) {
    const Samples copy = initial;
    initial.insert(initial.end(), copy.begin(), copy.end());
  }
  --idx;  // Python's loop variable keeps its last value.
  if (static_cast<std::int64_t>(batch.size()) == batch_size) {
    batch.clear();
    ++idx;
  }
  std::size_t cycle = 0;
  while (idx % static_cast<std::size_t>(processes) != 0 || !batch.empty()) {
    const std::size_t end = cycle + static_cast<std::size_t>(batch_size) - batch.size();
    batch.insert(batch.end(), initial.begin() + static_cast<std::ptrdiff_t>(cycle),
                 initial.begin() + static_cast<std::ptrdiff_t>(end));
    if (static_cast<int>(idx % processes) == index) result.push_back(batch);
    cycle = end;
    batch.clear();
    ++idx;
  }
  return result;
}

TEST(BatchPlanTest, EqualsAcceleratesBatchSamplerShard) {
  EXPECT_TRUE(rc::check([] {
    const BatchPlan plan{*rc::gen::inRange<std::int64_t>(1, 70), *rc::gen::inRange<std::int64_t>(1, 7),
                         *rc::gen::inRange(1, 5), *rc::gen::arbitrary<bool>()};
    for (int rank = 0; rank < plan.data_size; ++rank) {
      const auto expected =
          accelerate_shard(plan.samples, plan.batch_size, plan.data_size, rank, plan.drop_last);
      RC_ASSERT(plan.steps() == static_cast<std::int64_t>(expected.size()));
      for (std::int64_t step = 0; step < plan.steps(); ++step) {
        RC_ASSERT(plan.positions(step, rank) == expected[static_cast<std::size_t>(step)]);
      }
    }
  }));
}

TEST(BatchPlanTest, StepsGoRoundTheRanks) {
  const BatchPlan plan{24, 2, 3, true};
  EXPECT_EQ(plan.steps(), 4);
  EXPECT_EQ(plan.positions(0, 0), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(plan.positions(0, 2), (std::vector<std::int64_t>{4, 5}));
  EXPECT_EQ(plan.positions(3, 1), (std::vector<std::int64_t>{20, 21}));
}

TEST(BatchPlanTest, TooFewSamples) {
  EXPECT_EQ((BatchPlan{5, 2, 3, true}.steps()), 0);
  EXPECT_EQ((BatchPlan{5, 2, 3, false}.steps()), 1);
  EXPECT_EQ((BatchPlan{0, 2, 3, false}.steps()), 0);
}

}  // namespace
}  // namespace accel
