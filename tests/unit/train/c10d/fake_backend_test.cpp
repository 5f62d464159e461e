#include "train/c10d/fake_backend.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "train/c10d/group.hpp"

namespace accel::train {
namespace {

// The other ranks do not exist, and nobody listens on the port.
Group rank_of(int rank, int size) {
  return Group::connect({.rank = rank, .world_size = size, .master_port = 1}, config::Backend::kFake,
                        at::kCPU);
}

TEST(FakeBackendTest, EveryRankSeemsToHaveWhatThisOneHas) {
  Group group = rank_of(2, 3);
  EXPECT_EQ(group.backend_name(), "fake");
  const at::Tensor gathered = at::zeros({6});
  group.all_gather(gathered, at::tensor({1.0F, 2.0F})).wait();
  EXPECT_TRUE(at::equal(gathered, at::tensor({1.0F, 2.0F, 1.0F, 2.0F, 1.0F, 2.0F})));

  const at::Tensor exchanged = at::zeros({6});
  group.all_to_all(exchanged, at::arange(6, at::kFloat)).wait();
  EXPECT_TRUE(at::equal(exchanged, at::tensor({4.0F, 5.0F, 4.0F, 5.0F, 4.0F, 5.0F})));

  const at::Tensor part = at::zeros({2});
  group.reduce_scatter_mean(part, at::arange(6, at::kFloat)).wait();
  EXPECT_TRUE(at::equal(part, at::tensor({4.0F, 5.0F})));
  group.reduce_scatter_sum(part, at::arange(6, at::kFloat)).wait();
  EXPECT_TRUE(at::equal(part, at::tensor({12.0F, 15.0F})));

  const at::Tensor reduced = at::full({2}, 5.0F);
  group.all_reduce_mean(reduced).wait();
  EXPECT_TRUE(at::equal(reduced, at::full({2}, 5.0F)));
  group.all_reduce_sum(reduced).wait();
  EXPECT_TRUE(at::equal(reduced, at::full({2}, 15.0F)));
  std::array<double, 2> sums = {1, 0.5};
  group.all_reduce_sum(sums);
  EXPECT_EQ(sums, (std::array<double, 2>{3, 1.5}));

  const std::vector<std::byte> bytes(5, std::byte{7});
  EXPECT_EQ(group.broadcast_bytes(bytes), bytes);
  EXPECT_EQ(group.all_gather_object("a"), std::vector<std::string>(3, "a"));
  EXPECT_TRUE(group.gather_object("a").empty());
  EXPECT_EQ(rank_of(0, 3).gather_object("a"), std::vector<std::string>(3, "a"));
  group.barrier();
  group.shut_down();
}

TEST(FakeBackendTest, AShardMayBeGatheredInPlace) {
  Group group = rank_of(1, 2);
  const at::Tensor whole = at::tensor({1.0F, 2.0F});
  group.all_gather(whole, whole.narrow(0, 1, 1)).wait();
  EXPECT_TRUE(at::equal(whole, at::full({2}, 2.0F)));
}

TEST(FakeBackendTest, GroupsOfItAreFakesToo) {
  Group world = rank_of(5, 1024);
  const std::vector<int> members = {1, 5, 9};
  Group group = world.split(members, "replicate");
  EXPECT_EQ(group.backend_name(), "fake");
  EXPECT_EQ(group.rank(), 1);
  EXPECT_EQ(group.size(), 3);
}

TEST(FakeBackendTest, NobodyScatters) {
  Group group = rank_of(1, 2);
  EXPECT_ANY_THROW(group.scatter(at::zeros({2}), {}));
}

}  // namespace
}  // namespace accel::train
