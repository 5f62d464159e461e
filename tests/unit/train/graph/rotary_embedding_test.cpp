#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "small_net.hpp"

namespace accel::train {
namespace {

/// A module of class `class_name` that computes cos(positions @ gain).
Module rotary(const std::string& class_name) {
  Module module(class_name);
  module.register_buffer("positions", at::arange(300, 303).to(at::kFloat).unsqueeze(1));
  module.register_parameter("gain", at::arange(1, 5).to(at::kFloat).unsqueeze(0).div(3).requires_grad_(),
                            false);
  module.define("def forward(self, x):\n  return torch.cos(self.positions @ self.gain)\n");
  return module;
}

TEST(RotaryEmbeddingTest, RunsWithoutAutocastWhateverTheUnits) {
  Group group = Group::connect({}, config::Backend::kAuto, at::kCPU);
  const at::Tensor x = at::randn({3, 4});
  const auto gradients = [&](const std::string& class_name, const std::vector<std::string>& units,
                             bool recompute) {
    const TempDir dir;
    at::manual_seed(7);
    Module root("Net");
    root.register_module("rotary", rotary(class_name));
    root.register_module("last", block(/*frozen=*/false));
    root.define("def forward(self, x):\n  return self.last.forward(x * self.rotary.forward(x)).sum()\n");
    root.save((dir / "net.pt").string());
    ShardingOptions options = wrap_blocks();
    options.fsdp.transformer_layer_cls_to_wrap = units;
    options.fsdp.activation_checkpointing = recompute;
    options.fsdp.precision.autocast_dtype = "bfloat16";
    ShardedModel model(ModelFile::open(dir / "net.pt"), options, at::kCPU, group);
    step(model, x);
    return gradients_of(model);
  };
  const auto expected = gradients("RotaryEmbedding", {"Block"}, false);
  EXPECT_FALSE(at::allclose(gradients("Positions", {"Block"}, false).at("rotary.gain"),
                            expected.at("rotary.gain"), 1e-2));
  for (const bool recompute : {false, true}) {
    for (const auto& [name, gradient] : gradients("RotaryEmbedding", {"RotaryEmbedding", "Block"}, recompute))
      EXPECT_TRUE(gradient.equal(expected.at(name))) << name << (recompute ? ", recomputed" : "");
  }
}

}  // namespace
}  // namespace accel::train
