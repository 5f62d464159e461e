#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <map>
#include <string>

#include "temp_dir.hpp"
#include "train/fsdp/sharded_model.hpp"

namespace accel::train {

using testing::TempDir;
using torch::jit::Module;

/// tanh(x * scale) @ weight, with `scale` frozen on request.
inline Module block(bool frozen) {
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

/// A module that fails unless `first` gets and returns bfloat16. It returns float32, as a loss or not.
inline Module witness(bool returns_loss) {
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

inline ShardingOptions wrap_blocks() {
  ShardingOptions options;
  options.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
  options.fsdp.transformer_layer_cls_to_wrap = {"Block"};
  options.optimizer.no_decay = {"bias"};
  options.poison = true;
  return options;
}

inline std::map<std::string, at::Tensor> gradients_of(const ShardedModel& model) {
  std::map<std::string, at::Tensor> result;
  for (const FlatBuffer* buffer : model.trainable_buffers()) {
    for (const FlatParameter& parameter : buffer->layout().parameters) {
      result[parameter.spec.fqns[0]] =
          buffer->gradient().narrow(0, parameter.offset, parameter.numel).view(parameter.spec.shape).clone();
    }
  }
  return result;
}

inline void step(ShardedModel& model, const at::Tensor& x, bool reduce = true) {
  model.begin_micro_batch(reduce);
  model.forward({x}).toTensor().backward();
  model.finish_backward();
}

inline void expect_equal(const std::map<std::string, at::Tensor>& ours,
                         const std::map<std::string, at::Tensor>& theirs, double factor) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [name, gradient] : theirs)
    EXPECT_TRUE(at::allclose(ours.at(name), gradient * factor)) << name;
}

}  // namespace accel::train
