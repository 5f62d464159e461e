#include "train/fsdp/sharded_model.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <map>

#include "base/error.hpp"
#include "lonely_backend.hpp"
#include "small_net.hpp"
#include "train/optim/clip.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {
namespace {

class ShardedModelTest : public ::testing::TestWithParam<bool> {
 protected:
  Group group_ = Group::connect({}, config::Backend::kAuto, at::kCPU);
};

TEST_P(ShardedModelTest, GradientsEqualPlainAutograd) {
  Net net(GetParam());
  const at::Tensor x = at::randn({3, 4});
  ShardedModel model(ModelFile::open(net.dir / "net.pt"), wrap_blocks(), at::kCPU, group_);
  ASSERT_EQ(model.units().size(), 3u);
  step(model, x);
  expect_equal(gradients_of(model), net.gradients(x), 1);
}

TEST_P(ShardedModelTest, GradientsAddUpOverMicroBatches) {
  Net net(GetParam());
  const at::Tensor x = at::randn({3, 4});
  ShardedModel model(ModelFile::open(net.dir / "net.pt"), wrap_blocks(), at::kCPU, group_);
  step(model, x, /*reduce=*/false);
  EXPECT_FALSE(model.trainable_buffers()[0]->gradient().defined());
  step(model, x);
  expect_equal(gradients_of(model), net.gradients(x), 2);
  model.clear_gradients();
  step(model, x);
  expect_equal(gradients_of(model), net.gradients(x), 0.5);  // The gradients of `net` have accumulated, too.
}

TEST_P(ShardedModelTest, GradientsWithRecomputationEqualPlainAutograd) {
  Net net(GetParam());
  const at::Tensor x = at::randn({3, 4});
  ShardingOptions options = wrap_blocks();
  options.fsdp.activation_checkpointing = true;
  ShardedModel model(ModelFile::open(net.dir / "net.pt"), options, at::kCPU, group_);
  step(model, x, /*reduce=*/false);
  step(model, x);
  expect_equal(gradients_of(model), net.gradients(x), 2);
}

TEST(MixedPrecisionTest, UnitsComputeInItButALossStaysAsItIs) {
  const TempDir dir;
  at::manual_seed(3);
  Group group = Group::connect({}, config::Backend::kAuto, at::kCPU);
  ShardingOptions options = wrap_blocks();
  options.fsdp.precision = {"bfloat16", "bfloat16", "bfloat16"};
  const at::Tensor x = at::randn({3, 4});
  witness(/*returns_loss=*/false).save((dir / "net.pt").string());
  {
    ShardedModel model(ModelFile::open(dir / "net.pt"), options, at::kCPU, group);
    EXPECT_EQ(model.forward({x}).toTensor().scalar_type(), at::kBFloat16);
  }

  witness(/*returns_loss=*/true).save((dir / "loss.pt").string());
  ShardedModel with_loss(ModelFile::open(dir / "loss.pt"), options, at::kCPU, group);
  with_loss.begin_micro_batch(/*reduce=*/true);
  const at::Tensor loss = with_loss.forward({x}).toTensor();
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_FALSE(at::equal(loss, loss.to(at::kBFloat16).to(at::kFloat)));
  loss.backward();
  with_loss.finish_backward();
  for (const FlatBuffer* buffer : with_loss.trainable_buffers()) {
    EXPECT_EQ(buffer->parameters().front().scalar_type(), at::kBFloat16);
    EXPECT_EQ(buffer->shard().scalar_type(), at::kFloat);
    EXPECT_EQ(buffer->gradient().scalar_type(), at::kFloat);
    EXPECT_GT(buffer->gradient().abs().max().item<float>(), 0);
  }
}

/// A unit that is called twice, with a unit inside it and a parameter that the root shares.
TEST(RecomputedUnitsTest, GradientsThatComeInSeveralBackwardsAreAllCounted) {
  TempDir dir;
  at::manual_seed(5);
  Module inner("Inner");
  inner.register_parameter("weight", at::randn({4, 4}).requires_grad_(), false);
  inner.define("def forward(self, x):\n  return torch.tanh(x @ self.weight)\n");
  const at::Tensor shared = at::randn({4}).requires_grad_();
  Module outer("Outer");
  outer.register_module("inner", inner);
  outer.register_parameter("scale", at::randn({4}).requires_grad_(), false);
  outer.register_parameter("shared", shared, false);
  outer.define(
      "def forward(self, x):\n  return self.inner.forward(x * self.scale) + self.inner.forward(x) * "
      "self.shared\n");
  Module root("Net");
  root.register_module("layer", outer);
  root.register_parameter("shared", shared, false);
  root.define(
      "def forward(self, x):\n  return (self.layer.forward(self.layer.forward(x)) * self.shared).sum()\n");
  root.save((dir / "net.pt").string());
  const at::Tensor x = at::randn({3, 4});
  root.forward({x}).toTensor().backward();
  const std::map<std::string, at::Tensor> expected{
      {"layer.inner.weight", inner.attr("weight").toTensor().grad()},
      {"layer.scale", outer.attr("scale").toTensor().grad()},
      {"shared", shared.grad()}};

  ShardingOptions options;
  options.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
  options.fsdp.transformer_layer_cls_to_wrap = {"Outer", "Inner"};
  options.fsdp.activation_checkpointing = true;
  Group group = Group::connect({}, config::Backend::kAuto, at::kCPU);
  ShardedModel model(ModelFile::open(dir / "net.pt"), options, at::kCPU, group);
  ASSERT_EQ(model.units().size(), 3u);
  step(model, x);
  expect_equal(gradients_of(model), expected, 1);
}

/// Runs on the last of 2 x 2 ranks. In an all-reduce the gradients of the other ranks are zero.
TEST(IgnoredParametersTest, AreTrainedWithTheMeanGradientOfAllRanks) {
  const TempDir dir;
  at::manual_seed(9);
  Module adapter("Adapter");
  adapter.register_parameter("weight", at::randn({4, 4}).requires_grad_(), false);
  adapter.register_parameter("bias", at::randn({4}).requires_grad_(), false);
  adapter.define("def forward(self, x):\n  return x @ self.weight + self.bias\n");
  Module root("Net");
  root.register_module("first", block(/*frozen=*/false));
  root.register_module("adapter", adapter);
  root.define("def forward(self, x):\n  return self.adapter.forward(self.first.forward(x)).sum()\n");
  root.save((dir / "net.pt").string());

  const auto over = [](int rank, int size) {
    return Group::over(c10::make_intrusive<LonelyBackend>(rank, size), at::kCPU);
  };
  Group world = over(3, 4);
  ShardingOptions options = wrap_blocks();
  options.fsdp.ignored_modules = "adapter";
  ShardedModel model(ModelFile::open(dir / "net.pt"), options, at::kCPU,
                     MeshGroups(world, {2, 2}, std::make_unique<Group>(over(1, 2)),
                                std::make_unique<Group>(over(1, 2)), nullptr));
  ASSERT_EQ(model.trainable_buffers().size(), 2U);
  const FlatBuffer& sharded = *model.trainable_buffers()[0];
  const FlatBuffer& replicated = *model.trainable_buffers()[1];
  ASSERT_TRUE(replicated.layout().is_replicated());
  ASSERT_FALSE(sharded.layout().is_replicated());
  // This rank has the values that the shards of all ranks would have: a net of these parameters.
  const at::NoGradGuard no_grad;
  for (const FlatParameter& parameter : sharded.layout().parameters) {
    const at::Tensor gathered = at::cat({sharded.shard(), sharded.shard()});
    const std::string name = parameter.spec.fqns[0].substr(std::string("first.").size());
    root.attr("first").toModule().attr(name).toTensor().copy_(
        gathered.narrow(0, parameter.offset, parameter.numel).view(parameter.spec.shape));
  }
  const at::Tensor x = at::randn({3, 4});
  {
    const at::AutoGradMode grad(true);
    for (int i = 0; i < 2; ++i) root.forward({x}).toTensor().backward();
    step(model, x, /*reduce=*/false);
    step(model, x);
  }

  const auto part = [&](const at::Tensor& flat, const char* name) {
    for (const FlatParameter& parameter : replicated.layout().parameters) {
      if (parameter.spec.fqns[0] == std::string("adapter.") + name)
        return flat.narrow(0, parameter.offset, parameter.numel).view(parameter.spec.shape).clone();
    }
    throw std::logic_error(name);
  };
  for (const char* name : {"weight", "bias"}) {
    const at::Tensor mean = adapter.attr(name).toTensor().grad() / 4;
    EXPECT_TRUE(at::allclose(part(replicated.gradient(), name), mean)) << name;
  }
  // The norms of the two ranks of a replica add up to one norm.
  const double sharded_norm = sharded.gradient().norm().item<double>();
  const double replicated_norm = replicated.gradient().norm().item<double>();
  EXPECT_NEAR(gradient_square_sum(model.trainable_buffers(), model.groups().mesh()).on_host,
              sharded_norm * sharded_norm + replicated_norm * replicated_norm / 2, 1e-3);

  config::OptimizerConfig config;
  config.lr = 1;
  config.options.weight_decay = 0.5;
  Optimizer optimizer(OptimizerPlan(config), model.trainable_buffers(), model.groups().place().shard);
  optimizer.step(0.01);
  for (const char* name : {"weight", "bias"}) {
    const double decay = std::string(name) == "weight" ? 0.5 : 0;
    const at::Tensor before = adapter.attr(name).toTensor();
    const at::Tensor expected = before * (1 - 0.01 * decay) - 0.01 * before.grad().sign();
    EXPECT_TRUE(at::allclose(part(replicated.shard(), name), expected, 1e-5, 1e-5)) << name;
  }
}

/// The bytes that rank 1 of 2 gathers in the second of two steps, minus those of one gather of each unit for
/// forward and one for backward, which the root and `only_forward` do not have.
std::int64_t surplus_gathers(const Module& root, std::vector<std::string> classes,
                             const std::string& only_forward) {
  const TempDir dir;
  root.save((dir / "net.pt").string());
  ShardingOptions options = wrap_blocks();
  options.fsdp.transformer_layer_cls_to_wrap = std::move(classes);
  const auto backend = c10::make_intrusive<LonelyBackend>(1, 2);
  Group group = Group::over(backend, at::kCPU);
  ShardedModel model(ModelFile::open(dir / "net.pt"), options, at::kCPU, lonely_groups(group));
  const at::Tensor x = at::randn({3, 4});
  step(model, x);
  model.clear_gradients();
  const std::size_t before = backend->gathered;
  step(model, x);
  std::int64_t expected = 0;
  for (const auto& unit : model.units()) {
    const bool once = unit->plan().is_root() || unit->plan().module == only_forward;
    for (const auto& buffer : unit->buffers())
      expected += static_cast<std::int64_t>(buffer->shard().nbytes()) * (once ? 1 : 2);
  }
  return static_cast<std::int64_t>(backend->gathered - before) - expected;
}

/// The gradients of the unit come before those of the unit inside it, and its input does not require grad.
TEST(GatheredAheadTest, AUnitAroundOthersThatIsDoneIsNotGatheredAgain) {
  Module outer("Outer");
  outer.register_module("inner", block(/*frozen=*/false));
  outer.register_parameter("gain", at::randn({4}).requires_grad_(), false);
  outer.define("def forward(self, x):\n  return self.inner.forward(x) * self.gain\n");
  Module root("Net");
  root.register_module("layer", outer);
  root.register_module("last", block(/*frozen=*/false));
  root.define("def forward(self, x):\n  return self.last.forward(self.layer.forward(x)).sum()\n");
  EXPECT_EQ(surplus_gathers(root, {"Outer", "Block"}, ""), 0);
}

TEST(GatheredAheadTest, AUnitToWhichNoBackwardComesIsNotGatheredForIt) {
  Module frozen("Frozen");
  frozen.register_parameter("weight", at::randn({4, 4}), false);
  frozen.define("def forward(self, x):\n  return x @ self.weight\n");
  Module root("Net");
  root.register_module("first", frozen);
  root.register_module("second", block(/*frozen=*/false));
  root.define("def forward(self, x):\n  return self.second.forward(self.first.forward(x)).sum()\n");
  EXPECT_EQ(surplus_gathers(root, {"Frozen", "Block"}, "first"), 0);
}

INSTANTIATE_TEST_SUITE_P(TrainableOrFrozenScale, ShardedModelTest, ::testing::Bool());

TEST_F(ShardedModelTest, AForwardWithoutGradIsThePlainForward) {
  Net net;
  const at::Tensor x = at::randn({3, 4});
  ShardedModel model(ModelFile::open(net.dir / "net.pt"), wrap_blocks(), at::kCPU, group_);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(model.forward({x}).toTensor(), net.root.forward({x}).toTensor()));
}

/// An input that a unit stores in an attribute has no backward in the unit. If it counted as an output the
/// unit would be gathered again and stay gathered.
TEST_F(ShardedModelTest, UnitsThatKeepTheirInputAreFreedInBackward) {
  const TempDir dir;
  Module root("Keeping");
  std::string forward = "def forward(self, x):\n";
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
    Module block("Block");
    block.register_parameter("weight", at::randn({4, 4}).set_requires_grad(true), false);
    block.register_attribute("last", at::TensorType::get(), at::zeros({}));
    block.define("def forward(self, x):\n  self.last = x\n  return torch.tanh(x @ self.weight)\n");
    root.register_module(name, block);
    forward += std::string("  x = self.") + name + ".forward(x)\n";
  }
  root.define(forward + "  return x.sum()\n");
  root.save((dir / "net.pt").string());
  ShardedModel model(ModelFile::open(dir / "net.pt"), wrap_blocks(), at::kCPU, group_);
  for (int i = 0; i < 2; ++i) {
    step(model, at::randn({3, 4}));
    model.clear_gradients();
  }
  EXPECT_LE(model.most_unsharded(), 3);
}

TEST_F(ShardedModelTest, NamesItsPersistentBuffers) {
  Net net;
  ShardedModel model(ModelFile::open(net.dir / "net.pt"), wrap_blocks(), at::kCPU, group_);
  const auto buffers = model.persistent_buffers();
  ASSERT_EQ(buffers.size(), 1u);
  EXPECT_EQ(buffers[0].first, "mean");
}

TEST_F(ShardedModelTest, AdamWEqualsItsFormulaWithAndWithoutDecay) {
  Net net;
  ShardedModel model(ModelFile::open(net.dir / "net.pt"), wrap_blocks(), at::kCPU, group_);
  config::OptimizerConfig config;
  config.lr = 1;
  config.options.betas = {0.8, 0.9};
  config.options.eps = 1e-6;
  config.options.weight_decay = 0.5;
  Optimizer optimizer(OptimizerPlan(config), model.trainable_buffers(), 0);
  std::map<std::string, at::Tensor> value;
  std::map<std::string, at::Tensor> mean;
  std::map<std::string, at::Tensor> square;
  const auto shard_part = [](const FlatBuffer& buffer, const FlatParameter& p) {
    return buffer.shard().narrow(0, p.offset, p.numel).clone();
  };
  for (int t = 1; t <= 3; ++t) {
    step(model, at::randn({3, 4}));
    for (const FlatBuffer* buffer : model.trainable_buffers()) {
      for (const FlatParameter& p : buffer->layout().parameters) {
        const std::string& name = p.spec.fqns[0];
        if (t == 1) {
          value[name] = shard_part(*buffer, p);
          mean[name] = at::zeros({p.numel});
          square[name] = at::zeros({p.numel});
        }
        if (name == "unused") continue;  // A parameter without a gradient does not change.
        const at::Tensor g = buffer->gradient().narrow(0, p.offset, p.numel);
        mean[name] = 0.8 * mean[name] + 0.2 * g;
        square[name] = 0.9 * square[name] + 0.1 * g * g;
        const double decay = name == "bias" ? 0 : 0.5;
        value[name] =
            value[name] * (1 - 0.01 * decay) - 0.01 * (mean[name] / (1 - std::pow(0.8, t))) /
                                                   ((square[name] / (1 - std::pow(0.9, t))).sqrt() + 1e-6);
      }
    }
    optimizer.step(0.01);
    for (const FlatBuffer* buffer : model.trainable_buffers()) {
      for (const FlatParameter& p : buffer->layout().parameters) {
        EXPECT_TRUE(at::allclose(shard_part(*buffer, p), value[p.spec.fqns[0]], 1e-5, 1e-6))
            << p.spec.fqns[0] << " step " << t;
      }
    }
    model.clear_gradients();
  }
  EXPECT_EQ(optimizer.steps(), 3);
}

TEST_F(ShardedModelTest, ClippingScalesToTheNorm) {
  Net net;
  ShardedModel model(ModelFile::open(net.dir / "net.pt"), wrap_blocks(), at::kCPU, group_);
  step(model, at::randn({3, 4}));
  const double norm = std::sqrt(gradient_square_sum(model.trainable_buffers(), Mesh{}).on_host);
  scale_gradients(model.trainable_buffers(), clip_factor(norm, 2 * norm));
  EXPECT_NEAR(std::sqrt(gradient_square_sum(model.trainable_buffers(), Mesh{}).on_host), norm, 1e-6 * norm);
  scale_gradients(model.trainable_buffers(), clip_factor(norm, 0.25 * norm));
  EXPECT_NEAR(std::sqrt(gradient_square_sum(model.trainable_buffers(), Mesh{}).on_host), 0.25 * norm,
              1e-5 * norm);
}

// fully_shard fails here, too, and says only that two dtypes are not the same.
TEST_F(ShardedModelTest, AnIgnoredModuleThatCannotTakeSixteenBitsIsNamed) {
  const TempDir dir;
  Module adapter("Linear");
  adapter.register_parameter("weight", at::randn({4, 4}).requires_grad_(), false);
  adapter.define("def forward(self, x):\n  return x @ self.weight\n");
  Module root("Net");
  root.register_module("first", block(/*frozen=*/false));
  root.register_module("adapter", adapter);
  root.define("def forward(self, x):\n  return self.adapter.forward(self.first.forward(x)).sum()\n");
  root.save((dir / "net.pt").string());
  ShardingOptions options = wrap_blocks();
  options.fsdp.ignored_modules = "adapter";
  options.fsdp.precision = {.param_dtype = "bfloat16", .reduce_dtype = "bfloat16", .io_dtype = "bfloat16"};
  ShardedModel model(ModelFile::open(dir / "net.pt"), options, at::kCPU, group_);
  try {
    step(model, at::randn({3, 4}));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("same dtype"), std::string::npos) << error.message();
    EXPECT_NE(error.advice().find("are not cast: adapter;"), std::string::npos) << error.advice();
  }
}

TEST_F(ShardedModelTest, HalfPrecisionTrainingIsRefusedByName) {
  Net net;
  net.root.register_parameter("half", at::ones({2}, at::kHalf), false);
  net.root.attr("half").toTensor().set_requires_grad(true);
  net.root.save((net.dir / "half.pt").string());
  try {
    const ShardedModel model(ModelFile::open(net.dir / "half.pt"), wrap_blocks(), at::kCPU, group_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("'half' requires grad and is float16"), std::string::npos)
        << error.message();
  }
}

}  // namespace
}  // namespace accel::train
