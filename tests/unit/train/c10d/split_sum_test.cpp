#include "train/c10d/split_sum.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

#include "ranks_as_threads.hpp"
#include "test_port.hpp"
#include "train/c10d/fake_backend.hpp"

namespace accel::train {
namespace {

using ::testing::ElementsAre;

/// Counts the all-reduces.
class Counting final : public FakeBackend {
 public:
  using FakeBackend::FakeBackend;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    ++count;
    return FakeBackend::allreduce(tensors, options);
  }
  int count = 0;
};

TEST(SplitSumTest, PartsOfTheDeviceAreAddedInTheirPlaces) {
  testing::on_ranks(2, 2, testing::test_port(), [](Group& group) {
    const double rank = group.rank();
    // A tensor stands for the part of a device here. One rank need not have the same parts as another.
    const SplitNumber split = rank == 0 ? SplitNumber(100, at::full({}, 20, at::kDouble)) : SplitNumber(7);
    const std::array<SplitNumber, 4> own = {rank, split, at::full({}, 0.5F, at::kFloat),
                                            SplitNumber(0, at::full({}, rank, at::kDouble))};
    EXPECT_THAT(sum_over_ranks(own, group), ElementsAre(1, 127, 1, 1));
  });
}

TEST(SplitSumTest, OneRankAddsItsParts) {
  Group group = Group::over(c10::make_intrusive<FakeBackend>(0, 1), at::kCPU);
  const std::array<SplitNumber, 2> own = {SplitNumber(1, at::full({}, 2, at::kDouble)), 4.0};
  EXPECT_THAT(sum_over_ranks(own, group), ElementsAre(3, 4));
  EXPECT_TRUE(sum_over_ranks({}, group).empty());
}

TEST(SplitSumTest, AllNumbersTravelInOneAllReduce) {
  const auto backend = c10::make_intrusive<Counting>(1, 2);
  Group group = Group::over(backend, at::kCPU);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::array<SplitNumber, 3> own = {1.5, SplitNumber(0, at::full({}, 1, at::kDouble)), -kInfinity};
  EXPECT_THAT(sum_over_ranks(own, group), ElementsAre(3, 2, -kInfinity));  // The other rank has as much.
  EXPECT_EQ(backend->count, 1);
}

}  // namespace
}  // namespace accel::train
