// With shards, gradients, optimizer state and saved activations offloaded all results must be the same, bit
// for bit. The storage of these tests copies as late as it may.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <cmath>
#include <map>

#include "late_storage.hpp"
#include "temp_dir.hpp"
#include "train/device/saved_activations.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/optim/clip.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using testing::LateStorage;
using torch::jit::Module;

at::Tensor weight(at::IntArrayRef sizes) { return at::randn(sizes).set_requires_grad(true); }

/// A model of blocks with dropout, running statistics and a frozen parameter, with a mask that is expanded.
void save_net(const TempDir& dir) {
  at::manual_seed(7);
  Module root("Net");
  std::string body = "def forward(self, x):\n  mask = (x[:, :1] * 0.5).expand(x.size(0), 4)\n";
  for (const char* name : {"first", "second", "third"}) {
    Module block("Block");
    block.register_parameter("weight", weight({4, 4}), false);
    block.register_parameter("bias", weight({4}), false);
    block.register_parameter("frozen", at::randn({4}), false);
    block.register_buffer("mean", at::zeros({4}));
    block.register_buffer("variance", at::ones({4}));
    block.define(
        "def forward(self, x, mask):\n"
        "  y = torch.batch_norm(x @ self.weight, None, None, self.mean, self.variance, True, 0.1, 1e-5, "
        "False)\n"
        "  return x + torch.dropout(torch.tanh(y * self.frozen + self.bias) + mask, 0.5, True)\n");
    root.register_module(name, block);
    body += "  x = self." + std::string(name) + ".forward(x, mask)\n";
  }
  root.register_parameter("scale", weight({4}), false);
  root.define(body + "  return (x * self.scale).square().mean()\n");
  root.save((dir / "net.pt").string());
}

struct Case {
  const char* name;
  bool params = true;
  bool activations = false;
  bool recompute = false;
  bool reshard = true;
  int micro_batches = 1;
  config::PrecisionConfig precision = {};
};

struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<at::Tensor> state;  ///< Shards, moments and buffers.
};

/// Runs three steps with clipping, and an evaluation in between.
Outcome train(const Case& tested, const std::shared_ptr<LateStorage>& storage) {
  const TempDir dir;
  save_net(dir);
  ShardingOptions options;
  options.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
  options.fsdp.transformer_layer_cls_to_wrap = {"Block"};
  options.fsdp.activation_checkpointing = tested.recompute;
  options.fsdp.reshard_after_forward = tested.reshard;
  options.fsdp.precision = tested.precision;
  options.optimizer.no_decay = {"bias"};
  options.poison = true;
  if (tested.params) options.storage = storage;
  if (tested.activations) options.activation_storage = storage;
  Group group = Group::connect({}, config::Backend::kAuto, at::kCPU);
  ShardedModel model(ModelFile::open(dir / "net.pt"), options, at::kCPU, group);
  Optimizer optimizer({}, model.trainable_buffers(), 0);
  at::manual_seed(11);
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    double loss_sum = 0;
    for (int micro_batch = 1; micro_batch <= tested.micro_batches; ++micro_batch) {
      model.begin_micro_batch(micro_batch == tested.micro_batches);
      const at::Tensor loss = model.forward({at::randn({8, 4})}).toTensor();
      loss.backward();
      model.finish_backward();
      loss_sum += loss.item<double>();
    }
    const double norm =
        std::sqrt(gradient_square_sum(model.trainable_buffers(), model.groups().mesh()).on_host);
    scale_gradients(model.trainable_buffers(), clip_factor(norm, 0.5 * norm));
    optimizer.step(0.01);
    model.clear_gradients();
    outcome.losses.push_back(loss_sum);
    outcome.norms.push_back(norm);
    const at::NoGradGuard no_grad;
    outcome.losses.push_back(model.forward({at::randn({8, 4})}).toTensor().item<double>());
  }
  for (const auto& unit : model.units()) {
    for (const auto& buffer : unit->buffers()) outcome.state.push_back(buffer->shard().clone());
  }
  for (const OptimizerState& state : optimizer.states()) {
    outcome.state.insert(outcome.state.end(), state.tensors.begin(), state.tensors.end());
  }
  for (const auto& [name, buffer] : model.persistent_buffers()) outcome.state.push_back(buffer.clone());
  return outcome;
}

class OffloadTest : public ::testing::TestWithParam<Case> {};

TEST_P(OffloadTest, TrainsBitForBitAsWithout) {
  const Outcome plain = train(GetParam(), nullptr);
  const auto storage = std::make_shared<LateStorage>();
  const Outcome offloaded = train(GetParam(), storage);
  EXPECT_GT(storage->fetched, 0);
  EXPECT_GT(storage->stored, 0);
  EXPECT_EQ(offloaded.losses, plain.losses);
  EXPECT_EQ(offloaded.norms, plain.norms);
  for (const double norm : plain.norms) EXPECT_GT(norm, 1e-3);
  ASSERT_EQ(offloaded.state.size(), plain.state.size());
  for (std::size_t i = 0; i < plain.state.size(); ++i)
    EXPECT_TRUE(offloaded.state[i].equal(plain.state[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, OffloadTest,
    ::testing::Values(Case{.name = "params"}, Case{.name = "params_kept", .reshard = false},
                      Case{.name = "params_accumulated", .micro_batches = 3},
                      Case{.name = "params_recomputed", .recompute = true},
                      Case{.name = "params_mixed", .precision = {"bfloat16", "bfloat16", "bfloat16"}},
                      Case{.name = "params_mixed_reduced_in_full",
                           .micro_batches = 2,
                           .precision = {"bfloat16", "float32", "bfloat16"}},
                      Case{.name = "activations", .params = false, .activations = true, .recompute = true},
                      Case{.name = "both",
                           .activations = true,
                           .recompute = true,
                           .micro_batches = 2,
                           .precision = {"bfloat16", "bfloat16", "bfloat16"}},
                      Case{.name = "both_kept", .activations = true, .recompute = true, .reshard = false}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(OffloadActivationsTest, FetchesWhatTheNextUnitKeepsAheadOfIt) {
  const Case tested{.name = "", .params = false, .activations = true, .recompute = true};
  const auto storage = std::make_shared<LateStorage>();
  (void)train(tested, storage);
  // Three steps of three units with two tensors each. In every step the tensors of all units but the first in
  // backward are fetched ahead, and each fetch but the last is joined while another is under way.
  EXPECT_EQ(storage->stored, 3 * 3 * 2);
  EXPECT_EQ(storage->fetched, 3 * 3 * 2);
  EXPECT_EQ(storage->overlapped, 3 * (3 * 2 - 1));
}

TEST(OffloadedActivationsTest, ComeBackAsTheyWere) {
  at::manual_seed(3);
  const at::Tensor plain = at::randn({3, 4});
  const at::Tensor transposed = at::randn({5, 2}).t();
  const at::Tensor expanded = at::arange(3).view({3, 1}).expand({3, 6});
  const at::Tensor part = at::randn({4, 8}).narrow(1, 2, 3);
  const at::Tensor empty = at::empty({0, 3});
  const at::Tensor scalar = at::scalar_tensor(2.5, at::kDouble);
  const std::vector<at::Tensor> tensors = {plain, transposed, expanded, part, plain, empty, scalar};
  std::vector<at::Tensor> expected;
  for (const at::Tensor& tensor : tensors) expected.push_back(tensor.clone());
  const auto storage = std::make_shared<LateStorage>();
  OffloadedActivations kept(storage, tensors);
  kept.release();
  EXPECT_EQ(storage->stored, 5);  // One tensor comes twice, and one is empty.
  for (const at::Tensor& tensor : {plain, transposed, part, scalar}) at::Tensor(tensor).fill_(-1);
  const std::vector<at::Tensor> back = kept.take();
  ASSERT_EQ(back.size(), expected.size());
  for (std::size_t i = 0; i < back.size(); ++i) {
    EXPECT_TRUE(back[i].equal(expected[i])) << i;
    EXPECT_EQ(back[i].scalar_type(), tensors[i].scalar_type());
    if (i != 3) {
      EXPECT_EQ(back[i].strides(), tensors[i].strides()) << i;
    }
  }
  EXPECT_TRUE(back[0].is_alias_of(back[4]));
  EXPECT_TRUE(back[5].is_alias_of(empty));
  EXPECT_EQ(back[2].storage().nbytes(), 3 * sizeof(std::int64_t));
}

TEST(OffloadedActivationsTest, TheLastCallWithoutABackwardIsFetchedFirst) {
  const auto storage = std::make_shared<LateStorage>();
  UnitActivations unit(storage);
  const std::vector<at::Tensor> tensors = {at::ones({2})};
  const auto first = unit.offload(tensors);
  auto forgotten = unit.offload(tensors);
  const auto last = unit.offload(tensors);
  for (const auto& kept : {first, forgotten, last}) kept->release();
  forgotten.reset();
  unit.fetch_next();
  unit.fetch_next();
  EXPECT_EQ(storage->fetched, 1);
  (void)last->take();
  EXPECT_EQ(storage->fetched, 1);
  unit.fetch_next();
  EXPECT_EQ(storage->fetched, 2);
  (void)first->take();
  EXPECT_EQ(storage->fetched, 2);
  unit.fetch_next();
  EXPECT_EQ(storage->fetched, 2);
}

TEST(StorageDeviceTest, OnCpuRanksTheHostIsWhereEverythingIs) {
  const auto host = StorageDevice::on_host(at::kCPU);
  EXPECT_FALSE(host->is_offloaded());
  const at::Tensor target = at::zeros({3}, at::kBFloat16);
  host->fetch(target, at::full({3}, 1.5))->wait_on_stream();
  EXPECT_TRUE(target.equal(at::full({3}, 1.5, at::kBFloat16)));
}

}  // namespace
}  // namespace accel::train
