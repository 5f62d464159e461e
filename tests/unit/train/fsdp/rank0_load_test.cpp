// Models whose files only rank 0 can read must load as those that every rank reads.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.hpp"
#include "late_storage.hpp"
#include "plan/layout/buffer_plan.hpp"
#include "plan/units/ignored_modules.hpp"
#include "plan/units/unit_plan.hpp"
#include "ranks_as_threads.hpp"
#include "temp_dir.hpp"
#include "tensor_counter.hpp"
#include "test_port.hpp"
#include "train/fsdp/buffers/load_shards.hpp"
#include "train/loop/open_model.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using testing::failures_of_ranks;
using testing::on_ranks;
using torch::jit::Module;

constexpr std::int64_t kWidth = 60;

void add(Module& module, const char* name, const at::Tensor& value, bool trainable = true) {
  module.register_parameter(name, value.detach().clone().set_requires_grad(trainable), false);
}

Module block(const char* name) {
  Module module(name);
  add(module, "weight", at::randn({kWidth, kWidth}));
  add(module, "bias", at::randn({kWidth}));
  add(module, "frozen", at::randn({kWidth}).to(at::kBFloat16), false);
  module.define("def forward(self, x):\n  return x @ self.weight + self.bias\n");
  return module;
}

/// A model with a tied parameter, one with strides, one without elements, a unit in a unit, a frozen module,
/// buffers of several dtypes, and parameters whose sizes no number of ranks divides.
void save_net(const std::filesystem::path& path, std::uint64_t seed) {
  at::manual_seed(seed);
  Module root("Net");
  const at::Tensor tied = at::randn({50, 7}).requires_grad_();
  Module head("Head");
  head.register_parameter("weight", tied, false);
  head.define("def forward(self, x):\n  return x\n");
  root.register_parameter("tokens", tied, false);
  root.register_parameter("strided", at::randn({11, 13}).t().requires_grad_(), false);
  add(root, "none", at::randn({0, 3}));
  root.register_buffer("mean", at::randn({100}));
  root.register_buffer("steps", at::randint(1000, {}, at::kLong));
  root.register_buffer("mask", at::randn({5, 3}) > 0);
  Module outer = block("Block");
  outer.register_module("inner", block("Inner"));
  outer.define("def outer(self, x):\n  return self.inner.forward(x)\n");
  root.register_module("first", block("Block"));
  root.register_module("outer", outer);
  root.register_module("last", block("Block"));
  Module adapter("Adapter");
  add(adapter, "weight", at::randn({9, 9}), false);
  adapter.define("def forward(self, x):\n  return x\n");
  root.register_module("adapter", adapter);
  root.register_module("head", head);
  root.define("def forward(self, x):\n  return self.outer.forward(self.first.forward(x))\n");
  root.save(path.string());
}

struct Files {
  TempDir dir;
  Files() {
    save_net(dir / "net.pt", 1);
    save_net(dir / "weights.pt", 2);
  }
};

struct Case {
  const char* name;
  int ranks = 2;
  int replicas = 1;
  bool weights = false;  ///< Weights come from a file of their own.
  config::Backend backend = config::Backend::kShm;
  config::PrecisionConfig precision = {};
  bool offloaded = false;  ///< Shards are in an offloaded storage.
};

/// What one rank has after loading.
struct Held {
  std::vector<at::Tensor> shards;
  std::int64_t grown_bytes = 0;   ///< The most by which loading raised it.
  std::int64_t largest_unit = 0;  ///< Bytes of all of it.
};

config::ModelConfig model_config(const Files& files, const Case& tested, bool from_rank_0, int rank) {
  config::ModelConfig config;
  config.broadcast_from_rank0 = from_rank_0;
  const std::filesystem::path dir = from_rank_0 && rank > 0 ? "/nowhere" : files.dir.path();
  config.path = dir / "net.pt";
  if (tested.weights) config.weights = dir / "weights.pt";
  return config;
}

/// This rank's empty flat buffers, as a ShardedModel makes them. A process can have only one ShardedModel.
struct Buffers {
  std::vector<std::unique_ptr<FlatBuffer>> owned;
  std::vector<ShardTarget> targets;
  std::int64_t largest_unit = 0;  ///< Bytes of all of it.

  Buffers(const ModelFile& file, const Case& tested, const MeshGroups& groups) {
    config::FsdpConfig fsdp;
    fsdp.version = 2;
    fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
    fsdp.transformer_layer_cls_to_wrap = {"Block", "Inner"};
    const ModelStructure structure = with_ignored(file.structure({}), "adapter");
    const auto pool = BufferPool::make(at::kCPU);
    std::shared_ptr<StorageDevice> storage = StorageDevice::beside(at::kCPU);
    if (tested.offloaded) storage = std::make_shared<testing::LateStorage>();
    for (const UnitPlan& unit : plan_units(structure, fsdp)) {
      std::int64_t bytes = 0;
      for (BufferPlan& plan : plan_buffers(structure, unit, OptimizerPlan({.no_decay = {"bias"}}),
                                           groups.mesh(), tested.precision)) {
        const at::ScalarType dtype = c10::getStringToDtypeMap().at(plan.dtype);
        owned.push_back(std::make_unique<FlatBuffer>(std::move(plan.layout), BufferDtypes::all(dtype),
                                                     plan.trainable, pool, storage));
        ShardTarget target{*owned.back(), {}, plan.replicated ? 0 : groups.place().shard};
        for (const std::size_t parameter : plan.parameters)
          target.sources.push_back({parameter, file.parameters()[parameter].scalar_type()});
        targets.push_back(std::move(target));
        bytes += owned.back()->layout().numel() * owned.back()->shard().element_size();
      }
      largest_unit = std::max(largest_unit, bytes);
    }
  }
};

std::vector<Held> load(const Files& files, const Case& tested, bool from_rank_0) {
  std::vector<Held> all(static_cast<std::size_t>(tested.ranks));
  on_ranks(
      tested.ranks, tested.ranks, testing::test_port(),
      [&](Group& world) {
        const config::ModelConfig config = model_config(files, tested, from_rank_0, world.rank());
        const MeshGroups groups =
            MeshGroups::split(world, {tested.replicas, tested.ranks / tested.replicas}, 0);
        const ModelFile file = open_model(config, world).file;
        const ModelStructure structure = file.structure({});
        Buffers buffers(file, tested, groups);
        std::unique_ptr<WeightSource> weights;
        if (world.rank() == 0 || !from_rank_0) weights = open_weights(file, structure, {config.weights, {}});
        const testing::TensorCounter counter;
        for (const ShardTarget& target : buffers.targets) {
          if (from_rank_0) {
            scatter_shards(weights.get(), target, groups);
          } else {
            load_shard(*weights, target);
          }
        }
        Held& held = all[static_cast<std::size_t>(world.rank())];
        held.grown_bytes = counter.peak();
        held.largest_unit = buffers.largest_unit;
        for (const auto& buffer : buffers.owned) held.shards.push_back(buffer->shard().view(at::kByte));
      },
      tested.backend);
  return all;
}

class RankZeroLoadTest : public ::testing::TestWithParam<Case> {};

TEST_P(RankZeroLoadTest, EveryRankHasTheBitsThatItWouldReadAndNoneMoreThanAUnit) {
  const Case& tested = GetParam();
  const Files files;
  const std::vector<Held> expected = load(files, tested, /*from_rank_0=*/false);
  const std::vector<Held> found = load(files, tested, /*from_rank_0=*/true);
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    ASSERT_EQ(found[rank].shards.size(), expected[rank].shards.size());
    // Three blocks and one inside, each with a frozen buffer of another dtype; the root; and the ignored
    // module.
    ASSERT_EQ(found[rank].shards.size(), 10U);
    for (std::size_t i = 0; i < found[rank].shards.size(); ++i)
      EXPECT_TRUE(at::equal(found[rank].shards[i], expected[rank].shards[i])) << rank << " " << i;
    // Gloo releases tensors on threads of its own, where they are not counted, and so does every backend for
    // tensors beside an offloaded shard.
    if (tested.backend == config::Backend::kGloo || tested.offloaded) continue;
    constexpr std::int64_t kSlackBytes = 2000;
    if (rank == 0) {
      EXPECT_GE(found[rank].grown_bytes, 4 * kWidth * kWidth);
      EXPECT_LE(found[rank].grown_bytes, found[rank].largest_unit + kSlackBytes);
    } else {
      EXPECT_LE(found[rank].grown_bytes, kSlackBytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RankZeroLoadTest,
    ::testing::Values(
        Case{"one", 1}, Case{"two"}, Case{"three", 3}, Case{.name = "two_weights", .weights = true},
        Case{.name = "three_weights", .ranks = 3, .weights = true},
        Case{.name = "three_over_gloo", .ranks = 3, .weights = true, .backend = config::Backend::kGloo},
        Case{.name = "two_by_two", .ranks = 4, .replicas = 2},
        Case{.name = "two_by_three_weights", .ranks = 6, .replicas = 2, .weights = true},
        Case{.name = "replicated", .ranks = 3, .replicas = 3},
        Case{.name = "mixed", .ranks = 3, .weights = true, .precision = {"bfloat16", "bfloat16"}},
        Case{.name = "offloaded", .ranks = 3, .weights = true, .offloaded = true},
        Case{.name = "two_by_two_offloaded", .ranks = 4, .replicas = 2, .offloaded = true}),
    [](const auto& tested) { return std::string(tested.param.name); });

std::string message_of(const std::exception_ptr& failure) {
  if (failure == nullptr) return "nothing";
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.message() + " | " + error.advice();
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(RankZeroLoadTest, ARankWithoutTheFileNamesTheSetting) {
  const Files files;
  for (const bool weights : {false, true}) {
    const auto failures = failures_of_ranks(2, 2, testing::test_port(), [&](Group& group) {
      config::ModelConfig config;
      config.path = files.dir / (group.rank() == 1 && !weights ? "none.pt" : "net.pt");
      if (weights) config.weights = files.dir / (group.rank() == 1 ? "none.pt" : "weights.pt");
      (void)open_model(config, group).file;
    });
    EXPECT_EQ(message_of(failures[1]),
              "rank 1 does not see '" + (files.dir / "none.pt").string() +
                  "' | every machine must see the model and its weights; if rank 0 alone does, set "
                  "training.model.broadcast_from_rank0: true");
  }
}

TEST(RankZeroLoadTest, IfRankZeroCannotReadAllEnd) {
  const Files files;
  const auto failures = failures_of_ranks(3, 3, testing::test_port(), [&](Group& group) {
    const config::ModelConfig config = model_config(files, {"", 3}, true, group.rank());
    const MeshGroups groups = MeshGroups::split(group, {1, 3}, 0);
    const ModelFile file = open_model(config, group).file;
    const ModelStructure structure = file.structure({});
    const Buffers buffers(file, {"", 3}, groups);
    // Some of its parameters are then before the end of the file, some after it.
    if (group.rank() == 0) resize_file(config.path, file_size(config.path) / 2);
    const auto weights = group.rank() == 0 ? open_weights(file, structure, {}) : nullptr;
    for (const ShardTarget& target : buffers.targets) scatter_shards(weights.get(), target, groups);
  });
  EXPECT_NE(message_of(failures[0]).find("net.pt"), std::string::npos) << message_of(failures[0]);
  for (const int rank : {1, 2}) {
    EXPECT_NE(message_of(failures[static_cast<std::size_t>(rank)]).find("rank 0"), std::string::npos)
        << message_of(failures[static_cast<std::size_t>(rank)]);
  }
}

}  // namespace
}  // namespace accel::train
