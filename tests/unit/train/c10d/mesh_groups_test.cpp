#include "train/c10d/mesh_groups.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.hpp"
#include "late_storage.hpp"
#include "lonely_backend.hpp"
#include "ranks_as_threads.hpp"
#include "test_port.hpp"
#include "train/fsdp/buffers/reduce_queue.hpp"

namespace accel::train {
namespace {

using testing::on_ranks;

float mean_over(Group& group, float value) {
  const at::Tensor tensor = at::full({1}, value);
  group.all_reduce_mean(tensor).wait();
  return tensor.item<float>();
}

TEST(MeshGroupsTest, EachGroupHasItsOwnRanks) {
  on_ranks(6, 6, testing::test_port(), [](Group& world) {
    const MeshGroups groups = MeshGroups::split(world, {2, 3}, 0);
    const int rank = world.rank();
    EXPECT_EQ(groups.shard().size(), 3);
    EXPECT_EQ(groups.shard().rank(), rank % 3);
    EXPECT_EQ(groups.replicate().size(), 2);
    EXPECT_EQ(groups.replicate().rank(), rank / 3);
    EXPECT_EQ(groups.reshard(), nullptr);
    EXPECT_EQ(&groups.mean(), &world);
    EXPECT_EQ(groups.data().rank, rank);
    EXPECT_EQ(groups.data().size, 6);
    const auto mine = static_cast<float>(rank);
    EXPECT_EQ(mean_over(groups.shard(), mine), rank < 3 ? 1.0F : 4.0F);
    EXPECT_EQ(mean_over(groups.replicate(), mine), static_cast<float>(rank % 3) + 1.5F);
    EXPECT_EQ(mean_over(groups.world(), mine), 2.5F);
    EXPECT_EQ(
        groups.shard().all_gather_object(std::to_string(rank)),
        rank < 3 ? (std::vector<std::string>{"0", "1", "2"}) : (std::vector<std::string>{"3", "4", "5"}));
  });
}

TEST(MeshGroupsTest, AGroupOfAllRanksIsTheWorldAndOneOfASingleRankNeedsNoBackend) {
  on_ranks(2, 2, testing::test_port(), [](Group& world) {
    const MeshGroups sharded = MeshGroups::split(world, {1, 2}, 0);
    EXPECT_EQ(&sharded.shard(), &world);
    EXPECT_EQ(sharded.replicate().backend_name(), "none");
    const MeshGroups replicated = MeshGroups::split(world, {2, 1}, 0);
    EXPECT_EQ(&replicated.replicate(), &world);
    EXPECT_EQ(replicated.shard().backend_name(), "none");
  });
}

TEST(MeshGroupsTest, MemoryIsSharedWithinAMachineEvenIfThereAreSeveral) {
  on_ranks(4, 2, testing::test_port(), [](Group& world) {
    EXPECT_EQ(world.backend_name(), "gloo");
    const MeshGroups groups = MeshGroups::split(world, {2, 2}, 0);
    EXPECT_EQ(groups.shard().backend_name(), "shm");
    EXPECT_EQ(groups.replicate().backend_name(), "gloo");
    // No rank leaves while another one still connects to it.
    world.barrier();
  });
}

TEST(MeshGroupsTest, ABackendThatWasAskedForIsKept) {
  on_ranks(
      4, 4, testing::test_port(),
      [](Group& world) {
        const MeshGroups groups = MeshGroups::split(world, {2, 2}, 0);
        EXPECT_EQ(groups.shard().backend_name(), "gloo");
        EXPECT_EQ(mean_over(groups.shard(), static_cast<float>(world.rank())),
                  world.rank() < 2 ? 0.5F : 2.5F);
        // `replicate` has not been used: no rank leaves while another one still connects to it.
        world.barrier();
      },
      config::Backend::kGloo);
}

TEST(MeshGroupsTest, RanksThatAreNoSuchMeshAreRefused) {
  Group one = Group::connect({}, config::Backend::kAuto, at::kCPU);
  EXPECT_THROW((void)MeshGroups::split(one, {2, 1}, 0), Error);
  EXPECT_THROW((void)MeshGroups::split(one, {1, 1}, 3), Error);
}

class ShutBackend final : public LonelyBackend {
 public:
  ShutBackend(std::string name, std::vector<std::string>& ended)
      : LonelyBackend(0, 2), name_(std::move(name)), ended_(ended) {}
  void shutdown() override {
    ended_.push_back(name_);
    if (name_ == "replicate") throw std::runtime_error("the network is down");
  }

 private:
  std::string name_;
  std::vector<std::string>& ended_;
};

TEST(MeshGroupsTest, EndInTheSameOrderOnEveryRankAndBeforeTheWorld) {
  std::vector<std::string> ended;
  const auto group = [&](const char* name) {
    return std::make_unique<Group>(Group::over(c10::make_intrusive<ShutBackend>(name, ended), at::kCPU));
  };
  const auto world = group("world");
  {
    const MeshGroups groups(*world, {2, 4}, group("shard"), group("replicate"), group("reshard"));
    EXPECT_TRUE(ended.empty());
    groups.shut_down();
  }
  world->shut_down();
  // All groups are shut down, although one of them fails.
  EXPECT_EQ(ended, (std::vector<std::string>{"reshard", "replicate", "shard", "world"}));
  MeshGroups(*world, {1, 2}, nullptr, nullptr, nullptr).shut_down();
  EXPECT_EQ(ended.size(), 4u);
}

TEST(MeshGroupsTest, EveryBackendCanEnd) {
  for (const config::Backend backend : {config::Backend::kGloo, config::Backend::kShm}) {
    on_ranks(
        4, 4, testing::test_port(),
        [](Group& world) {
          const MeshGroups groups = MeshGroups::split(world, {2, 2}, 0);
          (void)mean_over(groups.shard(), 1);
          world.barrier();
          groups.shut_down();
        },
        backend);
  }
}

/// Returns a tensor whose elements are their own positions.
void fill_shard(FlatBuffer& buffer, int shard) {
  const ElementRange range = buffer.layout().shard_range(shard);
  at::Tensor(buffer.shard()).copy_(at::arange(range.begin, range.end, at::kFloat));
}

std::shared_ptr<StorageDevice> storage_of(bool offloaded) {
  if (offloaded) return std::make_shared<testing::LateStorage>();
  return StorageDevice::beside(at::kCPU);
}

class MeshOfBuffersTest : public ::testing::TestWithParam<std::tuple<Mesh, bool>> {};

TEST_P(MeshOfBuffersTest, GradientsAreTheMeanOverAllRanks) {
  const Mesh mesh = std::get<0>(GetParam());
  on_ranks(mesh.size(), mesh.size(), testing::test_port(), [&](Group& world) {
    const MeshGroups groups = MeshGroups::split(world, mesh, 0);
    ReduceQueue queue(groups);
    const auto storage = storage_of(std::get<1>(GetParam()));
    std::vector<std::unique_ptr<FlatBuffer>> buffers;
    for (const std::int64_t numel : {100, 30, 7, 300}) {
      FlatLayout layout = make_flat_layout({{{"w"}, {numel}}}, 4, mesh);
      buffers.push_back(std::make_unique<FlatBuffer>(std::move(layout), BufferDtypes::all(at::kFloat), true,
                                                     BufferPool::make(at::kCPU), storage));
      buffers.back()->add_gradient(0, at::arange(numel, at::kFloat) * (world.rank() + 1.0));
      queue.start(*buffers.back());
    }
    queue.finish();
    storage->synchronize();
    const double mean = (mesh.size() + 1) / 2.0;
    for (const auto& buffer : buffers) {
      const FlatLayout& layout = buffer->layout();
      const int shard = groups.place().shard;
      ASSERT_EQ(buffer->gradient().numel(), layout.shard_numel);
      for (const ShardPiece& piece : pieces_of(layout, shard)) {
        const at::Tensor expected =
            at::arange(piece.in_parameter.begin, piece.in_parameter.end, at::kFloat) * mean;
        EXPECT_TRUE(
            at::allclose(buffer->gradient().narrow(0, piece.shard_offset, expected.numel()), expected));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, MeshOfBuffersTest,
                         ::testing::Combine(::testing::Values(Mesh{2, 2}, Mesh{1, 3}, Mesh{3, 1}, Mesh{2, 4}),
                                            ::testing::Bool()),
                         [](const auto& tested) {
                           const Mesh& mesh = std::get<0>(tested.param);
                           return std::to_string(mesh.replicas()) + "x" + std::to_string(mesh.shards()) +
                                  (std::get<1>(tested.param) ? "_offloaded" : "");
                         });

void start_unshard(FlatBuffer& buffer, const MeshGroups& groups) {
  Gathers gathers;
  buffer.start_unshard(groups, gathers);
  gathers.start();
}

class ReshardGroupTest : public ::testing::TestWithParam<bool> {};

TEST_P(ReshardGroupTest, WhatAGroupKeepsIsGatheredFromItAlone) {
  on_ranks(4, 4, testing::test_port(), [](Group& world) {
    const MeshGroups groups = MeshGroups::split(world, {1, 4}, 2);
    ASSERT_NE(groups.reshard(), nullptr);
    EXPECT_EQ(groups.reshard()->size(), 2);
    FlatLayout layout = make_flat_layout({{{"w"}, {100}}}, 4, groups.mesh());
    const auto storage = storage_of(GetParam());
    FlatBuffer buffer(std::move(layout), BufferDtypes::all(at::kFloat), true, BufferPool::make(at::kCPU),
                      storage);
    fill_shard(buffer, world.rank());
    start_unshard(buffer, groups);
    buffer.finish_unshard();
    buffer.reshard_to(*groups.reshard());
    EXPECT_FALSE(buffer.is_unsharded());
    // Changed shards show from where the second gather takes its parts.
    storage->synchronize();
    at::Tensor(buffer.shard()).zero_();
    start_unshard(buffer, groups);
    buffer.finish_unshard();
    EXPECT_TRUE(at::equal(buffer.parameters()[0].detach(), at::arange(100, at::kFloat)));
    // The reshard group's shard is used only once.
    buffer.reshard();
    start_unshard(buffer, groups);
    buffer.finish_unshard();
    EXPECT_TRUE(at::equal(buffer.parameters()[0].detach(), at::zeros({100})));
    buffer.reshard_to(*groups.reshard());
    buffer.drop_group_shard();
    storage->synchronize();
    fill_shard(buffer, world.rank());
    start_unshard(buffer, groups);
    buffer.finish_unshard();
    EXPECT_TRUE(at::equal(buffer.parameters()[0].detach(), at::arange(100, at::kFloat)));
  });
}

INSTANTIATE_TEST_SUITE_P(Stored, ReshardGroupTest, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "offloaded" : "beside"; });

}  // namespace
}  // namespace accel::train
