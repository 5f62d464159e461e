#include "train/checkpoint/state_items.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.hpp"
#include "temp_dir.hpp"
#include "train/c10d/fake_backend.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using torch::jit::Module;

void add(Module& module, const char* name, const at::Tensor& value, bool trainable = true) {
  module.register_parameter(name, value.detach().clone().set_requires_grad(trainable), false);
}

Module linear(const std::vector<std::int64_t>& shape) {
  Module module("Linear");
  add(module, "weight", at::randn(shape));
  add(module, "bias", at::randn({shape[0]}));
  module.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n");
  return module;
}

/// A model with a unit, a tied parameter, parameters without elements, frozen ones of 16 bits, ones without
/// weight decay, buffers, a LoRA adapter, and linears that two ranks can cut. No number of ranks divides the
/// other sizes.
Module net() {
  at::manual_seed(1);
  Module block("Block");
  add(block, "weight", at::randn({3, 5, 7}));
  add(block, "frozen", at::randn({11}).to(at::kBFloat16), false);
  block.register_buffer("count", at::full({}, 3, at::kLong));
  block.define("def forward(self, x):\n  return x\n");
  Module lora("Default");
  add(lora, "weight", at::randn({2, 13}));
  lora.define("def forward(self, x):\n  return x\n");
  Module lora_a("Lora");
  lora_a.register_module("default", lora);
  Module head("Head");
  const at::Tensor tied = at::randn({50, 7}).requires_grad_();
  head.register_parameter("weight", tied, false);
  Module root("Net");
  root.register_parameter("tokens", tied, false);
  root.register_module("block", block);
  root.register_module("lora_A", lora_a);
  root.register_module("head", head);
  root.register_module("up", linear({10, 7}));
  root.register_module("down", linear({7, 10}));
  add(root, "bias", at::randn({13}));
  add(root, "none", at::randn({0, 3}));
  root.register_buffer("mean", at::randn({4, 3}).t());
  root.define("def forward(self, x):\n  return x\n");
  return root;
}

/// A rank of a mesh whose other ranks do not exist, with its shards of a model and an optimizer.
class MeshRank {
 public:
  MeshRank(const Module& root, const Mesh& mesh, int rank) : mesh_(mesh), world_(fake(rank, mesh.size())) {
    const std::string path = (dir_ / "net.pt").string();
    root.save(path);
    ShardingOptions options;
    options.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
    options.fsdp.transformer_layer_cls_to_wrap = {"Block"};
    options.optimizer.no_decay = {"bias"};
    options.optimizer.lr = 0.5;
    options.poison = true;
    if (mesh.tp() > 1) options.tp_plan = {{"up", "colwise"}, {"down", "rowwise"}};
    const MeshPlace place = mesh.place_of(rank);
    const auto group = [](int number, int size) { return std::make_unique<Group>(fake(number, size)); };
    model_.emplace(ModelFile::open(path), options, at::kCPU,
                   MeshGroups(world_, mesh, group(place.shard, mesh.shards()),
                              group(place.replica, mesh.replicas()), nullptr));
    optimizer_.emplace(model_->optimizer_plan(), model_->trainable_buffers(), place.shard);
    // The moments are multiples of the parameter.
    const at::NoGradGuard no_grad;
    for (const Optimizer::State& state : optimizer_->states()) {
      const at::Tensor shard = state.buffer->shard().narrow(0, state.in_shard.begin, state.in_shard.size());
      at::Tensor(state.tensors[0]).copy_(shard * 2);
      at::Tensor(state.tensors[1]).copy_(shard * 3);
    }
  }

  [[nodiscard]] const ShardedModel& model() const { return *model_; }
  Optimizer& optimizer() { return *optimizer_; }
  [[nodiscard]] RankState optimizer_state_of(int rank) const {
    return optimizer_state(*optimizer_, optimizer_->states(), mesh_, {.rank = rank, .scale = 0.5});
  }

 private:
  static Group fake(int rank, int size) {
    return Group::over(c10::make_intrusive<FakeBackend>(rank, size), at::kCPU);
  }

  TempDir dir_;
  Mesh mesh_;
  Group world_;
  std::optional<ShardedModel> model_;
  std::optional<Optimizer> optimizer_;
};

/// The tensors of several ranks' items, put together by their boxes.
class Assembled {
 public:
  void add(const RankState& state) {
    ASSERT_EQ(state.items.size(), state.sources.size());
    for (std::size_t i = 0; i < state.items.size(); ++i) {
      const auto* chunk = std::get_if<ckpt::TensorChunk>(&state.items[i].content);
      if (chunk == nullptr) continue;
      const std::string name = ckpt::fqn_of(state.items[i].path);
      const ItemSource& source = state.sources[i];
      ASSERT_EQ(source.numel, chunk->box.numel()) << name;
      ASSERT_TRUE(source.tensor.is_contiguous()) << name;
      EXPECT_EQ(ckpt::torch_name(chunk->dtype), c10::getDtypeNames(source.tensor.scalar_type()).first)
          << name;
      if (!tensors_.contains(name)) {
        tensors_[name] = at::zeros(chunk->shape, source.tensor.options());
        writes_[name] = at::zeros(chunk->shape, at::kLong);
      }
      const at::Tensor elements = source.tensor.flatten().narrow(0, source.begin, source.numel);
      box_of(tensors_[name], chunk->box).copy_(elements.view(chunk->box.sizes));
      box_of(writes_[name], chunk->box).add_(1);
      ++chunks_[name];
    }
  }

  /// Each element must have been written once.
  void expect_is(const std::string& name, const at::Tensor& value) const {
    ASSERT_TRUE(tensors_.contains(name)) << name;
    EXPECT_TRUE(tensors_.at(name).equal(value.detach())) << name;
    EXPECT_TRUE(writes_.at(name).eq(1).all().item<bool>()) << name;
  }
  [[nodiscard]] std::size_t size() const { return tensors_.size(); }
  [[nodiscard]] int chunks(const std::string& name) const { return chunks_.at(name); }

 private:
  static at::Tensor box_of(at::Tensor tensor, const ckpt::Box& box) {
    for (std::size_t d = 0; d < box.sizes.size(); ++d)
      tensor = tensor.narrow(static_cast<std::int64_t>(d), box.offsets[d], box.sizes[d]);
    return tensor;
  }

  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, at::Tensor> writes_;
  std::map<std::string, int> chunks_;
};

std::vector<std::string> names_in(const RankState& state) {
  std::vector<std::string> names;
  for (const ckpt::DcpItem& item : state.items) names.push_back(ckpt::fqn_of(item.path));
  std::sort(names.begin(), names.end());
  return names;
}

/// The object of an item, which must be there once.
ckpt::pickle::Value object_in(const RankState& state, const std::string& name) {
  ckpt::pickle::Value found;
  int count = 0;
  for (const ckpt::DcpItem& item : state.items) {
    if (ckpt::fqn_of(item.path) != name) continue;
    ++count;
    if (const auto* value = std::get_if<ckpt::pickle::Value>(&item.content)) found = *value;
  }
  EXPECT_EQ(count, 1) << name;
  return found;
}

std::vector<std::string> strings_of(const ckpt::pickle::Value& value) {
  std::vector<std::string> strings;
  if (const auto* list = value.get<ckpt::pickle::List>()) {
    for (const ckpt::pickle::Value& item : list->items) strings.push_back(*item.get<std::string>());
  }
  std::sort(strings.begin(), strings.end());
  return strings;
}

class StateItemsTest : public ::testing::TestWithParam<Mesh> {};

TEST_P(StateItemsTest, TheRanksWriteEachElementOfTheModelOnce) {
  const Module root = net();
  Assembled all;
  for (int rank = 0; rank < GetParam().size(); ++rank) {
    const MeshRank mine(root, GetParam(), rank);
    all.add(model_state(mine.model(), /*adapter_only=*/false, rank));
  }
  std::size_t tensors = 0;
  for (const auto& parameter : root.named_parameters()) {
    all.expect_is("model." + parameter.name, parameter.value);
    ++tensors;
  }
  all.expect_is("model.head.weight", root.attr("tokens").toTensor());
  for (const auto& buffer : root.named_buffers()) {
    all.expect_is("model." + buffer.name, buffer.value);
    ++tensors;
  }
  EXPECT_EQ(all.chunks("model.none"), 1);
  EXPECT_EQ(all.size(), tensors);
}

TEST_P(StateItemsTest, TheRanksWriteEachElementOfTheOptimizerOnce) {
  const Module root = net();
  Assembled all;
  for (int rank = 0; rank < GetParam().size(); ++rank)
    all.add(MeshRank(root, GetParam(), rank).optimizer_state_of(rank));
  std::size_t parameters = 0;
  for (const auto& parameter : root.named_parameters()) {
    if (!parameter.value.requires_grad() || parameter.name == "head.weight") continue;
    const std::string state = "optimizer.state." + parameter.name;
    all.expect_is(state + ".exp_avg", parameter.value * 2);
    all.expect_is(state + ".exp_avg_sq", parameter.value * 3);
    all.expect_is(state + ".step", at::zeros({}));
    ++parameters;
  }
  EXPECT_EQ(all.size(), 3 * parameters);
}

/// The items for `rank` of model and optimizer, as the rank `caller` computes them.
std::vector<ckpt::DcpItem> items_of(const Module& root, const Mesh& mesh, int caller, int rank) {
  const MeshRank mine(root, mesh, caller);
  std::vector<ckpt::DcpItem> items = model_state(mine.model(), /*adapter_only=*/false, rank).items;
  const std::vector<ckpt::DcpItem> others = mine.optimizer_state_of(rank).items;
  items.insert(items.end(), others.begin(), others.end());
  return items;
}

/// Rank 0 plans the files of all ranks.
TEST_P(StateItemsTest, Rank0ComputesTheItemsThatEachRankComputes) {
  const Module root = net();
  for (int rank = 0; rank < GetParam().size(); ++rank) {
    const std::vector<ckpt::DcpItem> planned = items_of(root, GetParam(), 0, rank);
    const std::vector<ckpt::DcpItem> own = items_of(root, GetParam(), rank, rank);
    ASSERT_EQ(planned.size(), own.size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_EQ(planned[i].path, own[i].path);
      const auto* theirs = std::get_if<ckpt::TensorChunk>(&planned[i].content);
      const auto* ours = std::get_if<ckpt::TensorChunk>(&own[i].content);
      ASSERT_EQ(theirs == nullptr, ours == nullptr);
      if (ours == nullptr) continue;
      EXPECT_EQ(theirs->shape, ours->shape);
      EXPECT_EQ(theirs->dtype, ours->dtype);
      EXPECT_EQ(theirs->box, ours->box);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, StateItemsTest,
                         ::testing::Values(Mesh{}, Mesh{1, 3}, Mesh{3, 1}, Mesh{2, 2}, Mesh{1, 1, 1, 2},
                                           Mesh{1, 3, 1, 2}, Mesh{2, 2, 1, 2}),
                         [](const auto& tested) {
                           return std::to_string(tested.param.replicas()) + "x" +
                                  std::to_string(tested.param.shards()) + "x" +
                                  std::to_string(tested.param.tp());
                         });

TEST(ModelStateTest, OfAnAdapterHasItsTrainableParametersUnderPeftsNames) {
  Module root = net();
  for (const auto& parameter : root.named_parameters())
    at::Tensor(parameter.value).set_requires_grad(parameter.name.starts_with("lora_A"));
  const MeshRank rank(root, Mesh{}, 0);
  const RankState state = model_state(rank.model(), /*adapter_only=*/true, 0);
  EXPECT_EQ(names_in(state), std::vector<std::string>{"model.lora_A.weight"});
}

TEST(ModelStateTest, TiedNamesLeadToTheFirstName) {
  const MeshRank rank(net(), Mesh{}, 0);
  EXPECT_EQ(tied_names(rank.model()),
            (std::map<std::string, std::string>{{"model.head.weight", "model.tokens"}}));
}

TEST(OptimizerStateTest, HasTheStepsOfEachParameterOnRank0) {
  const Module root = net();
  MeshRank rank(root, Mesh{1, 2}, 0);
  std::vector<std::vector<std::int64_t>> steps;
  std::map<std::string, std::int64_t> expected;
  for (const Optimizer::State& state : rank.optimizer().states()) {
    steps.emplace_back();
    for (std::size_t i = state.range.first; i < state.range.end; ++i) {
      steps.back().push_back(static_cast<std::int64_t>(expected.size()) + 4);
      expected[state.buffer->layout().parameters[i].spec.fqns.front()] = steps.back().back();
    }
  }
  const std::vector<Optimizer::State> before = rank.optimizer().states();
  rank.optimizer().restore_steps(20, steps);
  Assembled state;
  state.add(rank.optimizer_state_of(0));
  for (const auto& [name, count] : expected)
    state.expect_is("optimizer.state." + name + ".step", at::scalar_tensor(count, at::kFloat));
  for (const std::string& name : names_in(rank.optimizer_state_of(1))) EXPECT_FALSE(name.ends_with(".step"));
  // A copy of the states has the steps of the moment at which it was made.
  Assembled copied;
  copied.add(optimizer_state(rank.optimizer(), before, Mesh{1, 2}, {}));
  copied.expect_is("optimizer.state.tokens.step", at::zeros({}));
}

TEST(OptimizerStateTest, HasTorchsParamGroupsOnRank0) {
  const MeshRank rank(net(), Mesh{1, 2}, 0);
  const RankState state = rank.optimizer_state_of(0);
  const auto in_group = [&](int group, const char* key) {
    return object_in(state, "optimizer.param_groups." + std::to_string(group) + "." + key);
  };
  EXPECT_EQ(strings_of(in_group(0, "params")),
            (std::vector<std::string>{"block.weight", "down.weight", "lora_A.default.weight", "none",
                                      "tokens", "up.weight"}));
  EXPECT_EQ(strings_of(in_group(1, "params")), (std::vector<std::string>{"bias", "down.bias", "up.bias"}));
  for (const int group : {0, 1}) {
    EXPECT_EQ(*in_group(group, "lr").get<double>(), 0.25);
    EXPECT_EQ(*in_group(group, "initial_lr").get<double>(), 0.5);
    EXPECT_EQ(*in_group(group, "weight_decay").get<double>(), group == 0 ? 0.01 : 0.0);
  }
  for (const std::string& name : names_in(rank.optimizer_state_of(1)))
    EXPECT_FALSE(name.starts_with("optimizer.param_groups")) << name;
}

TEST(OptimizerStateTest, ParametersOfOneKindAreOneParamGroup) {
  Module root = net();
  const auto count = [&] {
    MeshRank rank(root, Mesh{}, 0);
    return base_rates(rank.optimizer(), 0).size();
  };
  EXPECT_EQ(count(), 2U);
  for (const auto& parameter : root.named_parameters()) {
    if (parameter.name.ends_with("bias")) at::Tensor(parameter.value).set_requires_grad(false);
  }
  EXPECT_EQ(count(), 1U);
  for (const auto& parameter : root.named_parameters())
    at::Tensor(parameter.value).set_requires_grad(parameter.name == "bias");
  EXPECT_EQ(count(), 1U);
  const MeshRank rank(root, Mesh{}, 0);
  EXPECT_EQ(strings_of(object_in(rank.optimizer_state_of(0), "optimizer.param_groups.0.params")),
            std::vector<std::string>{"bias"});
}

TEST(AddWholeTest, TakesTensorsWithStridesAndRefusesDtypesThatNoCheckpointHas) {
  RankState state;
  const at::Tensor strided = at::arange(6).view({2, 3}).t();
  add_whole(state, {"model", "x"}, strided);
  add_whole(state, {"model", "scalar"}, at::full({}, 2.5));
  Assembled all;
  all.add(state);
  all.expect_is("model.x", strided);
  all.expect_is("model.scalar", at::full({}, 2.5));
  try {
    add_whole(state, {"model", "q"}, at::_empty_affine_quantized({2}, at::kQInt8, 1.0, 0));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("qint8"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace accel::train
