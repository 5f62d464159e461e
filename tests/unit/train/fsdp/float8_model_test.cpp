// A model whose float8 weights are gathered in float8: its memory and traffic are those of the plan.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include "base/error.hpp"
#include "lonely_backend.hpp"
#include "plan/model_plan.hpp"
#include "temp_dir.hpp"
#include "train/fsdp/sharded_model.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using torch::jit::Module;

Module linear(std::int64_t out, std::int64_t in) {
  Module module("Linear");
  module.register_parameter("weight", at::randn({out, in}).mul_(0.1).set_requires_grad(true), false);
  module.register_parameter("bias", at::randn({out}).set_requires_grad(true), false);
  module.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n");
  return module;
}

/// Blocks of two linears each between a first and a last linear. `block_end` is the end of a block's code.
Module net(const std::string& block_end = "") {
  Module root("Net");
  root.register_module("first", linear(32, 16));
  std::string body = "def forward(self, x):\n  x = self.first.forward(x)\n";
  for (const char* name : {"a", "b", "c"}) {
    Module block("Block");
    block.register_parameter("scale", at::ones({32}).set_requires_grad(true), false);
    block.register_module("up", linear(48, 32));
    block.register_module("down", linear(32, 48));
    block.define("def forward(self, x):\n  return x * self.scale + self.down.forward(self.up.forward(x))" +
                 block_end + "\n");
    root.register_module(name, block);
    body += std::string("  x = self.") + name + ".forward(x)\n";
  }
  root.register_module("last", linear(16, 32));
  root.define(body + "  return self.last.forward(x).sum()\n");
  return root;
}

struct Case {
  const char* name;
  int world_size = 2;
  int replicas = 1;
  int reshard_size = 0;
  bool reshard = true;
  bool recompute = false;
  std::int64_t micro_batches = 1;
};

config::Config config_of(const Case& tested) {
  config::Config config;
  config.mixed_precision = "fp8";
  config.distributed_type = config::DistributedType::kFsdp;
  config.launch.use_cpu = true;
  config.launch.num_processes = tested.world_size;
  config.fsdp.version = 2;
  config.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
  config.fsdp.transformer_layer_cls_to_wrap = {"Block"};
  config.fsdp.replicate_size = tested.replicas;
  config.fsdp.reshard_size = tested.reshard_size;
  config.fsdp.reshard_after_forward = tested.reshard;
  config.fsdp.activation_checkpointing = tested.recompute;
  config.fsdp.forward_prefetch = true;
  config.fsdp.backward_prefetch = true;
  config.fsdp.precision = {.param_dtype = "bfloat16", .reduce_dtype = "bfloat16", .io_dtype = "bfloat16"};
  config.training.emplace();
  config.training->gradient_accumulation_steps = tested.micro_batches;
  return config;
}

ShardingOptions options_of(const config::Config& config) {
  ShardingOptions options{config.fsdp, config.training->optimizer, config.training->float8};
  options.poison = true;
  return options;
}

class Float8ModelTest : public ::testing::TestWithParam<Case> {};

TEST_P(Float8ModelTest, MemoryAndTrafficAreThoseOfThePlan) {
  const Case& tested = GetParam();
  const TempDir dir;
  net().save((dir / "net.pt").string());
  const config::Config config = config_of(tested);
  const ArchiveModel archive = ArchiveModel::open(dir / "net.pt");
  const Footprint planned = footprint_of(archive, plan_model(archive, config), config);

  const Mesh mesh{tested.replicas, tested.world_size / tested.replicas};
  const auto backend = [](int size) { return c10::make_intrusive<LonelyBackend>(size - 1, size); };
  const auto shard = backend(mesh.shards());
  const auto reshard = backend(std::max(tested.reshard_size, 1));
  const auto over = [](const c10::intrusive_ptr<LonelyBackend>& each) {
    return std::make_unique<Group>(Group::over(each, at::kCPU));
  };
  Group world = Group::over(backend(mesh.size()), at::kCPU);
  MeshGroups groups(world, mesh, over(shard), over(backend(mesh.replicas())),
                    tested.reshard_size > 0 ? over(reshard) : nullptr);
  ShardedModel model(ModelFile::open(dir / "net.pt"), options_of(config), at::kCPU, std::move(groups));
  for (int step = 0; step < 2; ++step) {
    model.clear_gradients();
    for (std::int64_t micro_batch = 1; micro_batch <= tested.micro_batches; ++micro_batch) {
      model.begin_micro_batch(micro_batch == tested.micro_batches);
      model.forward({at::randn({3, 16})}).toTensor().backward();
      model.finish_backward();
    }
  }
  EXPECT_EQ(model.pool().held_bytes(), planned.memory.unsharded_bytes);
  EXPECT_EQ(shard->gathered + reshard->gathered, 2 * planned.gather_bytes);
  EXPECT_EQ(shard->reduced, 2 * planned.reduce_bytes);

  // The plan of a block: its weights take one byte an element, and its other parameters two.
  config::Config in_bfloat16 = config;
  in_bfloat16.training->float8.gathers_float8 = false;
  const Footprint other = footprint_of(archive, plan_model(archive, in_bfloat16), in_bfloat16);
  EXPECT_EQ(other.units[0].unsharded_bytes - planned.units[0].unsharded_bytes, 2U * 48 * 32);
  EXPECT_EQ(other.memory.shard_bytes, planned.memory.shard_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Float8ModelTest,
    ::testing::Values(Case{"two"}, Case{"three", 3}, Case{"alone", 1}, Case{.name = "kept", .reshard = false},
                      Case{.name = "recomputed_and_accumulated", .recompute = true, .micro_batches = 2},
                      Case{.name = "two_by_two", .world_size = 4, .replicas = 2},
                      Case{.name = "resharded_to_two", .world_size = 4, .reshard_size = 2}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(Float8ModelTest, RefusesAWeightThatOtherCodeReads) {
  const TempDir dir;
  net(" + self.up.weight.sum()").save((dir / "net.pt").string());
  const config::Config config = config_of({"two"});
  const std::string expected =
      "the weight of 'a.up' is to be gathered in float8, and the code of another module reads it";
  const auto message_of = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(message_of([&] { (void)plan_model(ArchiveModel::open(dir / "net.pt"), config); }), expected);
  EXPECT_EQ(message_of([&] {
              Group world = Group::over(c10::make_intrusive<LonelyBackend>(1, 2), at::kCPU);
              const ShardedModel model(ModelFile::open(dir / "net.pt"), options_of(config), at::kCPU,
                                       lonely_groups(world));
            }),
            expected);
}

TEST(Float8ModelTest, RefusesAWeightThatItsModuleUsesForMore) {
  const TempDir dir;
  Module model = net();
  model.attr("b").toModule().attr("up").toModule().define("def norm(self):\n  return self.weight.norm()\n");
  model.save((dir / "net.pt").string());
  const config::Config config = config_of({"two"});
  Group world = Group::over(c10::make_intrusive<LonelyBackend>(1, 2), at::kCPU);
  try {
    const ShardedModel sharded(ModelFile::open(dir / "net.pt"), options_of(config), at::kCPU,
                               lonely_groups(world));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.message(),
              "the weight of 'b.up' is to be gathered in float8, and the code of the module uses it for "
              "something else than its product");
  }
}

}  // namespace
}  // namespace accel::train
