#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>

#include "temp_dir.hpp"
#include "train/fsdp/sharded_model.hpp"

namespace accel::train {
namespace {

using testing::TempDir;
using torch::jit::Module;

/// A unit that gets a parameter of the root as an argument, as Transformer-XL's layers do.
void save_net(const std::string& path) {
  Module block("Block");
  block.register_parameter("weight", at::randn({4, 4}), false);
  block.register_parameter("gain", at::randn({4}).set_requires_grad(true), false);
  block.define("def forward(self, x, bias):\n  return torch.tanh(x @ self.weight + bias) * self.gain\n");
  Module root("Net");
  root.register_module("first", block);
  root.register_parameter("bias", at::randn({4}).set_requires_grad(true), false);
  root.define("def forward(self, x):\n  return self.first.forward(x + self.bias, self.bias).sum()\n");
  root.save(path);
}

std::int64_t hooks_of(const at::Tensor& tensor) {
  const auto& hooks = torch::autograd::impl::get_autograd_meta(tensor)->cpp_hooks_list_;
  if (!hooks) return 0;
  return std::count_if(hooks->begin(), hooks->end(), [](const auto& hook) { return hook != nullptr; });
}

TEST(LeafArgumentsTest, HaveNoHookMoreAfterEachStep) {
  const TempDir dir;
  save_net((dir / "net.pt").string());
  ShardingOptions options;
  options.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
  options.fsdp.transformer_layer_cls_to_wrap = {"Block"};
  options.poison = true;
  Group group = Group::connect({}, config::Backend::kAuto, at::kCPU);
  ShardedModel model(ModelFile::open(dir / "net.pt"), options, at::kCPU, group);
  at::Tensor bias;
  for (const auto& unit : model.units()) {
    if (unit->plan().is_root()) bias = unit->buffers().front()->parameters().front();
  }
  ASSERT_TRUE(bias.defined());
  for (int step = 0; step < 3; ++step) {
    model.begin_micro_batch(true);
    const at::Tensor loss = model.forward({at::ones({2, 4})}).toTensor();
    EXPECT_EQ(hooks_of(bias), 1) << step;
    loss.backward();
    model.finish_backward();
    EXPECT_EQ(hooks_of(bias), 0) << step;
    model.clear_gradients();
  }
}

}  // namespace
}  // namespace accel::train
