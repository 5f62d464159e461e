#include "train/graph/run/own_random.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace accel::train {
namespace {

const at::Device kCpu(at::kCPU);

at::Tensor mask() { return at::empty({4, 64}).bernoulli_(0.5); }

at::Tensor own_mask(int rank) {
  const OwnRandom own(kCpu, rank);
  return mask();
}

/// What a rank draws in two layers, each time outside and then for itself.
std::vector<at::Tensor> masks_of_rank(int rank) {
  at::manual_seed(7);
  std::vector<at::Tensor> masks;
  for (int layer = 0; layer < 2; ++layer) {
    masks.push_back(mask());
    masks.push_back(own_mask(rank));
  }
  masks.push_back(mask());
  return masks;
}

TEST(OwnRandomTest, RanksDrawOtherNumbersInsideAndTheSameOutside) {
  const std::vector<at::Tensor> first = masks_of_rank(0);
  const std::vector<at::Tensor> second = masks_of_rank(1);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(at::equal(first[i], second[i]), i % 2 == 0) << i;
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(at::equal(first[i], first[j])) << i << " and " << j;
  }
}

TEST(OwnRandomTest, ARecomputationDrawsTheSameAgain) {
  at::manual_seed(7);
  const RandomState before = RandomState::now(kCpu);
  const at::Tensor expected = own_mask(2);
  const RandomState behind = RandomState::now(kCpu);
  {
    const RandomStateGuard guard(before, kCpu);
    EXPECT_TRUE(at::equal(own_mask(2), expected));
  }
  EXPECT_TRUE(at::equal(RandomState::now(kCpu).cpu(), behind.cpu()));
}

}  // namespace
}  // namespace accel::train
