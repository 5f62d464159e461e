#include "train/fsdp/part_random.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace accel::train {
namespace {

const at::Device kCpu(at::kCPU);

at::Tensor mask() { return at::empty({4, 64}).bernoulli_(0.5); }

/// What a rank draws in two layers: outside, inside a part, outside, and so on.
std::vector<at::Tensor> masks_of_rank(int rank) {
  at::manual_seed(7);
  PartRandom random;
  std::vector<at::Tensor> masks;
  for (int layer = 0; layer < 2; ++layer) {
    masks.push_back(mask());
    for (int linear = 0; linear < 3; ++linear) random.enter(kCpu, rank);  // Of queries, keys and values.
    masks.push_back(mask());
    random.leave();
  }
  masks.push_back(mask());
  random.leave();
  return masks;
}

TEST(PartRandomTest, RanksDrawOtherNumbersInsideAndTheSameOutside) {
  const std::vector<at::Tensor> first = masks_of_rank(0);
  const std::vector<at::Tensor> second = masks_of_rank(1);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(at::equal(first[i], second[i]), i % 2 == 0) << i;
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(at::equal(first[i], first[j])) << i << " and " << j;
  }
}

TEST(PartRandomTest, ARecomputationDrawsTheSameAgain) {
  at::manual_seed(7);
  PartRandom random;
  const RandomState before = RandomState::now(kCpu);
  random.enter(kCpu, 2);
  const at::Tensor expected = mask();
  random.leave();
  const RandomState behind = RandomState::now(kCpu);
  {
    const RandomStateGuard guard(before, kCpu);
    random.enter(kCpu, 2);
    EXPECT_TRUE(at::equal(mask(), expected));
    random.leave();
  }
  EXPECT_TRUE(at::equal(RandomState::now(kCpu).cpu(), behind.cpu()));
}

TEST(PartRandomTest, ARecomputationThatEndsInsideLeavesNothingBehind) {
  at::manual_seed(7);
  PartRandom random;
  {
    const RandomStateGuard guard(RandomState::now(kCpu), kCpu);
    random.enter(kCpu, 1);
  }
  const RandomState outside = RandomState::now(kCpu);
  random.leave();
  EXPECT_TRUE(at::equal(RandomState::now(kCpu).cpu(), outside.cpu()));
  {
    const RandomStateGuard guard(RandomState::now(kCpu), kCpu);
    random.enter(kCpu, 1);
  }
  mask();
  random.enter(kCpu, 1);
  const at::Tensor own = mask();
  random.leave();
  const at::Tensor next = mask();
  EXPECT_FALSE(at::equal(own, next));
}

}  // namespace
}  // namespace accel::train
