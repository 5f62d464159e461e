// Compares the plan's memory and traffic with what the engine allocates and sends.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include "late_storage.hpp"
#include "lonely_backend.hpp"
#include "plan/model_plan.hpp"
#include "temp_dir.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using torch::jit::Module;

Module layer(const char* name, std::int64_t width) {
  Module module(name);
  module.register_parameter("weight", at::randn({width, width}).set_requires_grad(true), false);
  module.register_parameter("bias", at::randn({width}).set_requires_grad(true), false);
  module.register_parameter("frozen", at::ones({width}), false);
  module.define(
      "def forward(self, x):\n  return x + torch.tanh(x @ self.weight + self.bias) * self.frozen\n");
  return module;
}

Module matrix(const char* name, const char* product) {
  Module module(name);
  module.register_parameter("weight", at::randn({50, 8}).set_requires_grad(true), false);
  module.define(std::string("def forward(self, x):\n  return x @ self.weight") + product + "\n");
  return module;
}

/// A model of six blocks of one size and one of another, with a frozen part of 64 elements. The second block
/// has a unit inside. With `ends` there are an embedding and a head that are not tied. The module that may be
/// ignored is `trained` or not.
Module net(bool ends, bool trained) {
  Module root("Net");
  if (ends) root.register_module("tokens", matrix("WordEmbedding", ""));
  root.register_parameter("scale", at::randn({8}).set_requires_grad(true), false);
  root.register_parameter("tied", at::randn({50, 8}).set_requires_grad(true), false);
  root.register_parameter("last", at::randn({8}).set_requires_grad(true), false);
  root.register_buffer("mean", at::ones({100}));
  std::string body = std::string("def forward(self, x):\n  x = ") +
                     (ends ? "self.tokens.forward(x)" : "x @ self.tied") + " * self.scale\n";
  for (int i = 0; i < 7; ++i) {
    const std::string name = "block" + std::to_string(i);
    Module block = layer("Block", 8);
    if (i == 1) {
      block = Module("Block");
      block.register_parameter("gain", at::randn({8}).set_requires_grad(true), false);
      block.register_module("inner", layer("Inner", 8));
      block.define("def forward(self, x):\n  return self.inner.forward(x) * self.gain\n");
    }
    root.register_module(name, block);
    body += "  x = self." + name + ".forward(x)\n";
  }
  Module adapter("Adapter");
  adapter.register_parameter("weight", at::ones({8, 8}).set_requires_grad(trained), false);
  adapter.define("def forward(self, x):\n  return x @ self.weight\n");
  root.register_module("adapter", adapter);
  body += "  x = self.adapter.forward(x)\n";
  if (ends) root.register_module("head", matrix("Linear", ".t()"));
  root.define(body + "  return ((x * self.last) @ self.tied.t()).sum()" +
              (ends ? " + self.head.forward(x).sum()\n" : "\n"));
  return root;
}

struct Case {
  const char* name;
  int world_size = 2;
  bool reshard = true;
  std::int64_t micro_batches = 1;
  bool recompute = false;
  bool nested = false;
  bool ahead = true;
  bool ends = false;
  const char* ignored = "";
  int replicas = 1;
  int reshard_size = 0;
  config::PrecisionConfig precision = {};
  bool offload = false;
  bool trained = false;  ///< Whether the ignored module is trained.
  config::DdpConfig ddp = {};
  int rank = -1;  ///< The rank that is measured; -1 for the last one.
  int depth = 1;  ///< Units that are gathered ahead at most.
};

class FootprintMeasuredTest : public ::testing::TestWithParam<Case> {};

TEST_P(FootprintMeasuredTest, EqualsThePlan) {
  const Case& tested = GetParam();
  const TempDir dir;
  net(tested.ends, tested.trained).save((dir / "net.pt").string());
  config::Config config;
  config.launch.num_processes = tested.world_size;
  config.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
  config.fsdp.transformer_layer_cls_to_wrap = {"Block"};
  if (tested.nested) config.fsdp.transformer_layer_cls_to_wrap.emplace_back("Inner");
  config.fsdp.version = 2;
  config.fsdp.ignored_modules = tested.ignored;
  config.fsdp.replicate_size = tested.replicas;
  config.fsdp.reshard_size = tested.reshard_size;
  config.fsdp.precision = tested.precision;
  config.fsdp.offload_params = tested.offload;
  config.fsdp.reshard_after_forward = tested.reshard;
  config.fsdp.activation_checkpointing = tested.recompute;
  config.fsdp.forward_prefetch = tested.ahead;
  config.fsdp.backward_prefetch = tested.ahead;
  config.fsdp.prefetch_depth = tested.depth;
  config.training.emplace();
  config.training->gradient_accumulation_steps = tested.micro_batches;
  config.training->optimizer.no_decay = {"bias"};
  config.training->ddp = tested.ddp;

  const ArchiveModel archive = ArchiveModel::open(dir / "net.pt");
  const Footprint planned = footprint_of(archive, plan_model(archive, config), config);

  const bool ignores = *tested.ignored != '\0';
  const Mesh mesh{tested.replicas, tested.world_size / tested.replicas};
  const int rank = tested.rank < 0 ? mesh.size() - 1 : tested.rank;
  const MeshPlace place = mesh.place_of(rank);
  const auto all = c10::make_intrusive<LonelyBackend>(rank, mesh.size());
  Group world = Group::over(all, at::kCPU);
  const auto shard = c10::make_intrusive<LonelyBackend>(place.shard, mesh.shards());
  const auto replicate = c10::make_intrusive<LonelyBackend>(place.replica, mesh.replicas());
  const int reshard_group = std::max(tested.reshard_size, 1);
  const auto reshard = c10::make_intrusive<LonelyBackend>(reshard_group - 1, reshard_group);
  const auto over = [](const c10::intrusive_ptr<LonelyBackend>& backend) {
    return std::make_unique<Group>(Group::over(backend, at::kCPU));
  };
  MeshGroups groups(world, mesh, over(shard), over(replicate),
                    tested.reshard_size > 0 ? over(reshard) : nullptr);
  ShardingOptions options{config.fsdp, config.training->optimizer};
  options.ddp = tested.ddp;
  if (tested.offload) options.storage = std::make_shared<testing::LateStorage>();
  ShardedModel model(ModelFile::open(dir / "net.pt"), options, at::kCPU, std::move(groups));
  Optimizer optimizer(OptimizerPlan(config.training->optimizer), model.trainable_buffers(), place.shard);
  // Two steps, because units are gathered ahead only when their order is known.
  for (int step = 0; step < 2; ++step) {
    model.clear_gradients();
    for (std::int64_t micro_batch = 1; micro_batch <= tested.micro_batches; ++micro_batch) {
      model.begin_micro_batch(micro_batch == tested.micro_batches);
      model.forward({at::randn({3, 50})}).toTensor().backward();
      model.finish_backward();
    }
  }

  std::size_t shards = 0;
  std::size_t gradients = 0;
  std::size_t states = 0;
  std::size_t replicated_gradients = 0;
  ASSERT_EQ(model.units().size(), planned.units.size());
  ASSERT_EQ(model.units().size(), 8U + (tested.nested ? 1 : 0) + (tested.ends ? 2 : 0));
  for (std::size_t i = 0; i < model.units().size(); ++i) {
    std::size_t own = 0;
    for (const auto& buffer : model.units()[i]->buffers()) {
      if (ignores && buffer->layout().mesh.shards() == 1) {
        EXPECT_EQ(buffer->shard().nbytes(), planned.units[i].replicated_bytes);
        EXPECT_EQ(at::count_nonzero(buffer->shard()).item<int>(), 64);  // Also on the last rank.
        ASSERT_EQ(buffer->trainable(), tested.trained);
        if (tested.trained) replicated_gradients += buffer->gradient().nbytes();
        continue;
      }
      own += buffer->shard().nbytes();
      if (buffer->trainable()) gradients += buffer->gradient().nbytes();
    }
    EXPECT_EQ(own, planned.units[i].shard_bytes) << planned.units[i].module;
    shards += own;
  }
  for (const OptimizerState& state : optimizer.states()) {
    for (const at::Tensor& tensor : state.tensors) states += tensor.nbytes();
  }
  EXPECT_EQ(shards, planned.memory.shard_bytes);
  gradients += replicated_gradients;
  EXPECT_EQ(gradients, planned.memory.gradient_bytes);
  EXPECT_EQ(states, planned.memory.optimizer_bytes);
  // With one shard the gradients of the shard are in the pool.
  const bool mixed = !tested.precision.param_dtype.empty();
  const bool are_views = mesh.shards() == 1 && !mixed && !tested.offload;
  const std::size_t in_pool = are_views ? gradients : planned.memory.unsharded_bytes + replicated_gradients;
  EXPECT_EQ(planned.memory.host_bytes,
            tested.offload ? shards + gradients + states - 3 * replicated_gradients : 0U);
  EXPECT_EQ(planned.memory.total_bytes + planned.memory.host_bytes,
            shards + gradients + states + planned.memory.gradient_temp_bytes +
                planned.memory.unsharded_bytes + planned.memory.copy_bytes + planned.memory.replicated_bytes +
                planned.memory.hook_bytes);
  EXPECT_EQ(planned.memory.hook_bytes > 0, tested.ddp.comm_hook != config::CommHookType::kNo);
  EXPECT_EQ(model.pool().held_bytes(), in_pool);
  EXPECT_EQ(shard->gathered + reshard->gathered, 2 * planned.gather_bytes);
  EXPECT_EQ(shard->reduced, 2 * planned.reduce_bytes);
  EXPECT_EQ(replicate->averaged + all->averaged, 2 * planned.average_bytes);
  EXPECT_EQ(all->averaged > 0, tested.trained);
  EXPECT_EQ(replicate->averaged > 0, tested.replicas > 1);
  EXPECT_EQ(reshard->gathered > 0, tested.reshard_size > 0);
  EXPECT_EQ(planned.memory.replicated_bytes, ignores ? 656U : 400U);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, FootprintMeasuredTest,
    ::testing::Values(
        Case{"alone", 1}, Case{"two"}, Case{"not_ahead", 2, true, 1, false, false, false}, Case{"three", 3},
        Case{"many", 64}, Case{.name = "first_of_1024", .world_size = 1024, .rank = 0},
        Case{.name = "middle_of_1024", .world_size = 1024, .rank = 511},
        Case{.name = "last_of_1024", .world_size = 1024, .rank = 1023}, Case{"kept", 2, false},
        Case{"accumulated", 2, true, 3}, Case{"kept_and_accumulated", 3, false, 2},
        Case{"recomputed", 2, true, 1, true}, Case{"nested", 2, true, 1, false, true},
        Case{"nested_kept", 2, false, 1, false, true}, Case{"nested_recomputed", 2, true, 1, true, true},
        Case{"nested_recomputed_kept", 2, false, 2, true, true},
        Case{"alone_accumulated", 1, true, 3, false, true},
        Case{"ends", 2, true, 1, false, false, true, true},
        Case{"ends_not_ahead", 3, true, 1, false, false, false, true},
        Case{"ends_recomputed", 2, true, 2, true, true, true, true},
        Case{"ends_kept", 2, false, 1, false, false, true, true},
        Case{"ignored", 3, true, 1, false, false, true, true, "adapt.*"},
        Case{.name = "ignored_two_by_four_resharded",
             .world_size = 8,
             .ends = true,
             .ignored = "adapt.*",
             .replicas = 2,
             .reshard_size = 2},
        Case{.name = "ignored_and_trained",
             .world_size = 4,
             .micro_batches = 2,
             .ends = true,
             .ignored = "adapt.*",
             .replicas = 2,
             .trained = true},
        Case{.name = "ignored_and_trained_recomputed",
             .world_size = 4,
             .recompute = true,
             .ignored = "adapt.*",
             .trained = true},
        Case{.name = "ignored_and_trained_offloaded",
             .world_size = 2,
             .ignored = "adapt.*",
             .offload = true,
             .trained = true},
        Case{.name = "two_by_two", .world_size = 4, .replicas = 2},
        Case{.name = "three_by_two_accumulated", .world_size = 6, .micro_batches = 2, .replicas = 3},
        Case{.name = "two_by_two_recomputed_kept",
             .world_size = 4,
             .reshard = false,
             .recompute = true,
             .nested = true,
             .replicas = 2},
        Case{.name = "replicated", .world_size = 3, .replicas = 3},
        Case{.name = "replicated_nested_accumulated",
             .world_size = 2,
             .micro_batches = 2,
             .nested = true,
             .replicas = 2},
        Case{.name = "replicated_in_bfloat16",
             .world_size = 3,
             .replicas = 3,
             .ddp = {.comm_hook = config::CommHookType::kBf16}},
        Case{.name = "replicated_as_factors",
             .world_size = 2,
             .micro_batches = 2,
             .replicas = 2,
             .ddp = {.comm_hook = config::CommHookType::kPowerSgd, .power_sgd = {.start_iter = 0}}},
        Case{.name = "resharded_to_two", .world_size = 4, .reshard_size = 2},
        Case{.name = "two_ahead", .world_size = 2, .depth = 2},
        Case{.name = "nested_recomputed_three_ahead", .recompute = true, .nested = true, .depth = 3},
        Case{.name = "more_ahead_than_there_are", .world_size = 3, .ends = true, .depth = 1000},
        Case{.name = "resharded_to_two_not_ahead", .world_size = 4, .ahead = false, .reshard_size = 2},
        Case{.name = "resharded_to_four_of_64", .world_size = 64, .reshard_size = 4},
        Case{.name = "resharded_nested_accumulated",
             .world_size = 4,
             .micro_batches = 3,
             .nested = true,
             .reshard_size = 2},
        Case{.name = "resharded_nested_recomputed",
             .world_size = 4,
             .recompute = true,
             .nested = true,
             .reshard_size = 2},
        Case{.name = "two_by_four_resharded_recomputed",
             .world_size = 8,
             .recompute = true,
             .replicas = 2,
             .reshard_size = 2},
        Case{.name = "mixed", .precision = {"bfloat16", "bfloat16", "bfloat16"}},
        Case{.name = "mixed_reduced_in_full",
             .micro_batches = 2,
             .precision = {"bfloat16", "float32", "bfloat16"}},
        Case{.name = "mixed_alone", .world_size = 1, .precision = {"bfloat16", "bfloat16", "bfloat16"}},
        Case{.name = "mixed_alone_reduced_in_full",
             .world_size = 1,
             .micro_batches = 2,
             .nested = true,
             .precision = {"bfloat16", "float32", "bfloat16"}},
        Case{.name = "mixed_replicated",
             .world_size = 2,
             .replicas = 2,
             .precision = {"bfloat16", "bfloat16", "bfloat16"}},
        Case{.name = "mixed_two_by_four_resharded",
             .world_size = 8,
             .replicas = 2,
             .reshard_size = 2,
             .precision = {"bfloat16", "float32", "bfloat16"}},
        Case{.name = "offloaded", .offload = true},
        Case{.name = "offloaded_alone", .world_size = 1, .offload = true},
        Case{.name = "offloaded_alone_accumulated", .world_size = 1, .micro_batches = 2, .offload = true},
        Case{.name = "offloaded_ends_recomputed",
             .world_size = 3,
             .recompute = true,
             .ends = true,
             .ignored = "adapt.*",
             .offload = true},
        Case{.name = "offloaded_replicated", .world_size = 3, .replicas = 3, .offload = true},
        Case{.name = "offloaded_two_by_four_resharded",
             .world_size = 8,
             .replicas = 2,
             .reshard_size = 2,
             .offload = true},
        Case{.name = "offloaded_mixed_alone",
             .world_size = 1,
             .precision = {"bfloat16", "bfloat16", "bfloat16"},
             .offload = true},
        Case{.name = "offloaded_mixed",
             .world_size = 4,
             .micro_batches = 2,
             .precision = {"bfloat16", "float32", "bfloat16"},
             .offload = true}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace accel::train
