#include "train/fsdp/sharded_model.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <map>

#include "../temp_dir.hpp"
#include "base/error.hpp"
#include "train/optim/adamw.hpp"
#include "train/optim/clip.hpp"

namespace accel::train {
namespace {

using testing::TempDir;
using torch::jit::Module;

/// tanh(x * scale) @ weight, with `scale` frozen on request.
Module block(bool frozen) {
  Module module("Block");
  module.register_parameter("weight", at::randn({4, 4}), false);
  module.register_parameter("scale", at::randn({4}), false);
  module.attr("weight").toTensor().set_requires_grad(true);
  module.attr("scale").toTensor().set_requires_grad(!frozen);
  module.define("def forward(self, x):\n  return torch.tanh(x * self.scale) @ self.weight\n");
  return module;
}

struct Net {
  TempDir dir;
  Module root{"Net"};

  explicit Net(bool frozen = false) {
    at::manual_seed(7);
    root.register_module("first", block(frozen));
    root.register_module("second", block(frozen));
    root.register_parameter("unused", at::randn({3}), false);
    root.attr("unused").toTensor().set_requires_grad(true);
    root.register_parameter("bias", at::randn({4}), false);
    root.attr("bias").toTensor().set_requires_grad(true);
    root.register_buffer("mean", at::ones({4}));
    root.define(
        "def forward(self, x):\n  return (self.second.forward(self.first.forward(x)) + self.bias).sum()\n");
    root.save((dir / "net.pt").string());
  }

  std::map<std::string, at::Tensor> gradients(const at::Tensor& x) {
    root.forward({x}).toTensor().backward();
    std::map<std::string, at::Tensor> result;
    for (const auto& parameter : root.named_parameters()) {
      if (!parameter.value.requires_grad()) continue;
      result[parameter.name] =
          parameter.value.grad().defined() ? parameter.value.grad() : at::zeros_like(parameter.value);
    }
    return result;
  }
};

/// Fails unless `first` gets and gives bfloat16; returns float32, as a loss or not.
Module witness(bool returns_loss) {
  Module root("Witness");
  root.register_module("first", block(/*frozen=*/false));
  // 15 is torch.bfloat16.
  root.define(std::string("def forward(self, x):\n"
                          "  y = self.first.forward(x)\n"
                          "  assert x.dtype == 15 and y.dtype == 15\n"
                          "  return (y.float() / 3)") +
              (returns_loss ? ".sum()\n" : "\n"));
  return root;
}

ShardingOptions wrap_blocks() {
  ShardingOptions options;
  options.fsdp.auto_wrap_policy = core::WrapPolicy::kTransformer;
  options.fsdp.transformer_layer_cls_to_wrap = {"Block"};
  options.no_decay = {"bias"};
  return options;
}

std::map<std::string, at::Tensor> gradients_of(const ShardedModel& model) {
  std::map<std::string, at::Tensor> result;
  for (const FlatBuffer* buffer : model.trainable_buffers()) {
    for (const FlatParameter& parameter : buffer->layout().parameters) {
      result[parameter.spec.fqns[0]] =
          buffer->gradient().narrow(0, parameter.offset, parameter.numel).view(parameter.spec.shape).clone();
    }
  }
  return result;
}

void step(ShardedModel& model, const at::Tensor& x, bool reduce = true) {
  model.begin_micro_step(reduce);
  model.forward({x}).toTensor().backward();
  model.finish_backward();
}

void expect_equal(const std::map<std::string, at::Tensor>& ours,
                  const std::map<std::string, at::Tensor>& theirs, double factor) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [name, gradient] : theirs)
    EXPECT_TRUE(at::allclose(ours.at(name), gradient * factor)) << name;
}

class ShardedModelTest : public ::testing::TestWithParam<bool> {
 protected:
  Group group_ = Group::connect({}, core::Backend::kAuto, at::kCPU);
};

TEST_P(ShardedModelTest, GradientsEqualPlainAutograd) {
  Net net(GetParam());
  const at::Tensor x = at::randn({3, 4});
  ShardedModel model(ModelFile::open(net.dir / "net.pt"), wrap_blocks(), at::kCPU, group_);
  ASSERT_EQ(model.units().size(), 3u);
  step(model, x);
  expect_equal(gradients_of(model), net.gradients(x), 1);
}

TEST_P(ShardedModelTest, GradientsAddUpOverMicroSteps) {
  Net net(GetParam());
  const at::Tensor x = at::randn({3, 4});
  ShardedModel model(ModelFile::open(net.dir / "net.pt"), wrap_blocks(), at::kCPU, group_);
  step(model, x, /*reduce=*/false);
  EXPECT_FALSE(model.trainable_buffers()[0]->gradient().defined());
  step(model, x);
  expect_equal(gradients_of(model), net.gradients(x), 2);
  model.clear_gradients();
  step(model, x);
  expect_equal(gradients_of(model), net.gradients(x), 0.5);  // net's own gradients have added up meanwhile.
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
  Group group = Group::connect({}, core::Backend::kAuto, at::kCPU);
  ShardingOptions options = wrap_blocks();
  options.fsdp.precision = {"bfloat16", "bfloat16"};
  const at::Tensor x = at::randn({3, 4});
  witness(/*returns_loss=*/false).save((dir / "net.pt").string());
  {
    ShardedModel model(ModelFile::open(dir / "net.pt"), options, at::kCPU, group);
    EXPECT_EQ(model.forward({x}).toTensor().scalar_type(), at::kBFloat16);
  }

  witness(/*returns_loss=*/true).save((dir / "loss.pt").string());
  ShardedModel with_loss(ModelFile::open(dir / "loss.pt"), options, at::kCPU, group);
  with_loss.begin_micro_step(/*reduce=*/true);
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

/// A unit called twice, with a unit inside of it and a parameter that is also the root's.
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
  options.fsdp.auto_wrap_policy = core::WrapPolicy::kTransformer;
  options.fsdp.transformer_layer_cls_to_wrap = {"Outer", "Inner"};
  options.fsdp.activation_checkpointing = true;
  Group group = Group::connect({}, core::Backend::kAuto, at::kCPU);
  ShardedModel model(ModelFile::open(dir / "net.pt"), options, at::kCPU, group);
  ASSERT_EQ(model.units().size(), 3u);
  step(model, x);
  expect_equal(gradients_of(model), expected, 1);
}

INSTANTIATE_TEST_SUITE_P(TrainableOrFrozenScale, ShardedModelTest, ::testing::Bool());

TEST_F(ShardedModelTest, AForwardWithoutGradIsThePlainForward) {
  Net net;
  const at::Tensor x = at::randn({3, 4});
  ShardedModel model(ModelFile::open(net.dir / "net.pt"), wrap_blocks(), at::kCPU, group_);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(model.forward({x}).toTensor(), net.root.forward({x}).toTensor()));
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
  core::OptimizerConfig config;
  config.betas = {0.8, 0.9};
  config.eps = 1e-6;
  config.weight_decay = 0.5;
  AdamW optimizer(config, model.trainable_buffers(), 0);
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
  const double norm = std::sqrt(gradient_square_sum(model.trainable_buffers()));
  clip_gradients(model.trainable_buffers(), norm, 2 * norm);
  EXPECT_NEAR(std::sqrt(gradient_square_sum(model.trainable_buffers())), norm, 1e-6 * norm);
  clip_gradients(model.trainable_buffers(), norm, 0.25 * norm);
  EXPECT_NEAR(std::sqrt(gradient_square_sum(model.trainable_buffers())), 0.25 * norm, 1e-5 * norm);
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
