#include "train/graph/mend_traced.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

namespace accel::train {
namespace {

using torch::jit::Module;

/// A module that was saved in that mode, with constants as tracing leaves them.
Module traced(const std::string& forward, bool training) {
  Module module("Traced");
  module.register_attribute("training", c10::BoolType::get(), training);
  module.register_buffer("mean", at::zeros({4}));
  module.register_buffer("variance", at::ones({4}));
  module.define(forward);
  return module;
}

/// The result on ones, in a mode.
at::Tensor run(Module& module, bool training) {
  module.train(training);
  at::manual_seed(1);
  return module.forward({at::ones({8, 4})}).toTensor();
}

bool drops(const at::Tensor& result) { return (result == 0).any().item<bool>(); }

TEST(MendTracedTest, AFlagThatTracingFrozeFollowsTheModule) {
  for (const bool saved : {true, false}) {
    const std::string flag = saved ? "True" : "False";
    Module module = traced("def forward(self, x):\n  return torch.dropout(x, 0.5, " + flag + ")\n", saved);
    mend_traced(module, at::kCPU);
    EXPECT_FALSE(drops(run(module, false))) << saved;
    EXPECT_TRUE(drops(run(module, true))) << saved;
  }
}

TEST(MendTracedTest, AFlagOtherThanTheModulesWasMeantSo) {
  Module always = traced("def forward(self, x):\n  return torch.dropout(x, 0.5, True)\n", false);
  mend_traced(always, at::kCPU);
  EXPECT_TRUE(drops(run(always, false)));
  Module never = traced("def forward(self, x):\n  return torch.dropout(x, 0.5, False)\n", true);
  mend_traced(never, at::kCPU);
  EXPECT_FALSE(drops(run(never, true)));
}

TEST(MendTracedTest, BatchNormUsesItsStatisticsInEvaluationIfItHasAny) {
  const std::string with =
      "def forward(self, x):\n"
      "  return torch.batch_norm(x, None, None, self.mean, self.variance, True, 0.1, 1e-5, False)\n";
  const std::string without =
      "def forward(self, x):\n  return torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False)\n";
  Module module = traced(with, true);
  mend_traced(module, at::kCPU);
  EXPECT_TRUE(at::allclose(run(module, false), at::ones({8, 4}), 1e-4));  // (1 - 0) / sqrt(1 + eps)
  Module batch = traced(without, true);
  mend_traced(batch, at::kCPU);
  EXPECT_TRUE(at::allclose(run(batch, false), at::zeros({8, 4})));
}

TEST(MendTracedTest, AttentionDropsOnlyInTraining) {
  Module module = traced(
      "def forward(self, x):\n"
      "  y = x.view(1, 1, 8, 4)\n"
      "  return torch.scaled_dot_product_attention(y, y, y, None, 0.9, False)\n",
      true);
  mend_traced(module, at::kCPU);
  EXPECT_TRUE(at::allclose(run(module, false), at::ones({1, 1, 8, 4})));
  EXPECT_FALSE(at::allclose(run(module, true), at::ones({1, 1, 8, 4})));
}

TEST(MendTracedTest, AConstantDeviceBecomesTheModels) {
  Module module =
      traced("def forward(self, x):\n  return torch.ones([2], device=torch.device('meta'))\n", true);
  mend_traced(module, at::kCPU);
  EXPECT_TRUE(run(module, true).is_cpu());
}

TEST(MendTracedTest, BranchesAreMendedToo) {
  Module module = traced(
      "def forward(self, x):\n"
      "  if x.size(0) > 1:\n"
      "    x = torch.dropout(x, 0.5, True)\n"
      "  return x\n",
      true);
  mend_traced(module, at::kCPU);
  EXPECT_FALSE(drops(run(module, false)));
}

}  // namespace
}  // namespace accel::train
