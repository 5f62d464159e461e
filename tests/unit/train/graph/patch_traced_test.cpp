#include "train/graph/passes/patch_traced.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <string>

namespace accel::train {
namespace {

using torch::jit::Module;

/// A module that was saved in the mode `training`, with constants as tracing leaves them.
Module traced(const std::string& forward, bool training) {
  Module module("Traced");
  module.register_attribute("training", c10::BoolType::get(), training);
  module.register_buffer("mean", at::zeros({4}));
  module.register_buffer("variance", at::ones({4}));
  module.define(forward);
  return module;
}

/// The result for an input of ones in one mode.
at::Tensor run(Module& module, bool training) {
  module.train(training);
  at::manual_seed(1);
  return module.forward({at::ones({8, 4})}).toTensor();
}

bool drops(const at::Tensor& result) { return (result == 0).any().item<bool>(); }

TEST(PatchTracedTest, AFlagThatTracingFrozeFollowsTheModule) {
  for (const bool saved : {true, false}) {
    const std::string flag = saved ? "True" : "False";
    Module module = traced("def forward(self, x):\n  return torch.dropout(x, 0.5, " + flag + ")\n", saved);
    patch_traced(module, at::kCPU);
    EXPECT_FALSE(drops(run(module, false))) << saved;
    EXPECT_TRUE(drops(run(module, true))) << saved;
  }
}

TEST(PatchTracedTest, AFlagOtherThanTheModulesWasMeantSo) {
  Module always = traced("def forward(self, x):\n  return torch.dropout(x, 0.5, True)\n", false);
  patch_traced(always, at::kCPU);
  EXPECT_TRUE(drops(run(always, false)));
  Module never = traced("def forward(self, x):\n  return torch.dropout(x, 0.5, False)\n", true);
  patch_traced(never, at::kCPU);
  EXPECT_FALSE(drops(run(never, true)));
}

TEST(PatchTracedTest, AModuleInEvaluationStaysSoInAModelThatTrains) {
  for (const bool trains : {true, false}) {
    Module model("Model");
    model.register_attribute("training", c10::BoolType::get(), true);
    model.register_module("part",
                          traced("def forward(self, x):\n  return torch.dropout(x, 0.5, False)\n", false));
    Module other("__torch__.torch.nn.modules.dropout.Dropout");
    other.register_attribute("training", c10::BoolType::get(), trains);
    other.define("def forward(self, x):\n  return x\n");
    model.register_module("other", other);
    Module loss("__torch__.torch.nn.modules.loss.CrossEntropyLoss");
    loss.register_attribute("training", c10::BoolType::get(), true);
    loss.define("def forward(self, x):\n  return x\n");
    model.register_module("loss", loss);
    model.define("def forward(self, x):\n  return self.part.forward(x)\n");
    patch_traced(model, at::kCPU);
    EXPECT_EQ(drops(run(model, true)), !trains);
  }
}

TEST(PatchTracedTest, BatchNormUsesItsStatisticsInEvaluationIfItHasAny) {
  const std::string with =
      "def forward(self, x):\n"
      "  return torch.batch_norm(x, None, None, self.mean, self.variance, True, 0.1, 1e-5, False)\n";
  const std::string without =
      "def forward(self, x):\n  return torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False)\n";
  Module module = traced(with, true);
  patch_traced(module, at::kCPU);
  EXPECT_TRUE(at::allclose(run(module, false), at::ones({8, 4}), 1e-4));  // (1 - 0) / sqrt(1 + eps)
  Module batch = traced(without, true);
  patch_traced(batch, at::kCPU);
  EXPECT_TRUE(at::allclose(run(batch, false), at::zeros({8, 4})));
}

TEST(PatchTracedTest, InstanceNormUsesItsStatisticsInEvaluationIfItHasAny) {
  for (const bool saved : {true, false}) {
    const std::string flag = saved ? "True" : "False";
    Module module = traced(
        "def forward(self, x):\n"
        "  return torch.instance_norm(x.t()[None], None, None, self.mean, self.variance, " +
            flag + ", 0.5, 1e-5, False)\n",
        saved);
    patch_traced(module, at::kCPU);
    EXPECT_TRUE(at::allclose(run(module, false), at::ones({1, 4, 8}), 1e-4)) << saved;
    EXPECT_TRUE(at::allclose(module.attr("mean").toTensor(), at::zeros({4}))) << saved;
    EXPECT_TRUE(at::allclose(run(module, true), at::zeros({1, 4, 8}))) << saved;
    EXPECT_TRUE(at::allclose(module.attr("mean").toTensor(), at::full({4}, 0.5))) << saved;
  }
}

TEST(PatchTracedTest, BatchesAreCountedInTrainingOnly) {
  for (const bool saved : {true, false}) {
    const std::string flag = saved ? "True" : "False";
    Module module("Traced");
    module.register_attribute("training", c10::BoolType::get(), saved);
    module.register_buffer("mean", at::zeros({4}));
    module.register_buffer("variance", at::ones({4}));
    module.register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
    module.define(std::string("def forward(self, x):\n") +
                  (saved ? "  torch.add_(self.num_batches_tracked, 1, alpha=1)\n" : "") +
                  "  return torch.batch_norm(x, None, None, self.mean, self.variance, " + flag +
                  ", 0.1, 1e-5, False)\n");
    patch_traced(module, at::kCPU);
    const auto count = [&] { return module.attr("num_batches_tracked").toTensor().item<std::int64_t>(); };
    run(module, false);
    EXPECT_EQ(count(), 0) << saved;
    run(module, true);
    run(module, true);
    EXPECT_EQ(count(), 2) << saved;
  }
}

TEST(PatchTracedTest, WhatIsScriptedStays) {
  const std::string always = "def forward(self, x):\n  return torch.dropout(x, 0.5, True)\n";
  // Two modules of one class, and one that reads its flag. Modules inside it may have been traced.
  Module block = traced(always, true);
  Module twice("Twice");
  twice.register_attribute("training", c10::BoolType::get(), true);
  twice.register_module("first", block);
  twice.register_module("second", block.copy());
  twice.define("def forward(self, x):\n  return self.first.forward(x) + self.second.forward(x)\n");
  patch_traced(twice, at::kCPU);
  EXPECT_TRUE(drops(run(twice, false)));

  Module reads("Reads");
  reads.register_attribute("training", c10::BoolType::get(), true);
  reads.register_module("inner", traced(always, true));
  reads.define(
      "def forward(self, x):\n  y = self.inner.forward(x)\n  if self.training:\n    y = y * 2\n  return y\n");
  patch_traced(reads, at::kCPU);
  EXPECT_FALSE(drops(run(reads, false)));
  Module inner = traced(
      "def forward(self, x):\n  y = torch.dropout(x, 0.5, True)\n  if self.training:\n"
      "    y = y * 2\n  return y\n",
      true);
  patch_traced(inner, at::kCPU);
  EXPECT_TRUE(drops(run(inner, false)));
}

TEST(PatchTracedTest, AttentionDropsOnlyInTraining) {
  Module module = traced(
      "def forward(self, x):\n"
      "  y = x.view(1, 1, 8, 4)\n"
      "  return torch.scaled_dot_product_attention(y, y, y, None, 0.9, False)\n",
      true);
  patch_traced(module, at::kCPU);
  EXPECT_TRUE(at::allclose(run(module, false), at::ones({1, 1, 8, 4})));
  EXPECT_FALSE(at::allclose(run(module, true), at::ones({1, 1, 8, 4})));
}

TEST(PatchTracedTest, AConstantDeviceBecomesTheModels) {
  Module module =
      traced("def forward(self, x):\n  return torch.ones([2], device=torch.device('meta'))\n", true);
  patch_traced(module, at::kCPU);
  EXPECT_TRUE(run(module, true).is_cpu());
}

/// The device that a constant device becomes.
std::string patched(const std::string& constant, at::Device device) {
  Module module = traced("def forward(self, x):\n  return torch.device('" + constant + "')\n", true);
  patch_traced(module, device);
  return module.forward({at::ones({1})}).toDevice().str();
}

TEST(PatchTracedTest, AConstantDeviceBecomesThisRanks) {
  EXPECT_EQ(patched("cuda:0", at::Device(at::kCUDA, 1)), "cuda:1");
  EXPECT_EQ(patched("cuda:1", at::Device(at::kCUDA, 1)), "cuda:1");
  EXPECT_EQ(patched("cuda", at::Device(at::kCUDA, 1)), "cuda:1");
  EXPECT_EQ(patched("cpu", at::Device(at::kCUDA, 1)), "cuda:1");
  EXPECT_EQ(patched("cpu:0", at::kCPU), "cpu:0");
  EXPECT_EQ(patched("cuda:0", at::kCPU), "cpu");
}

/// The device of the result of `forward`, one line, for a tensor on the CPU in a model for another device.
at::Device made_on(const std::string& forward, bool training = true) {
  Module module = traced("def forward(self, x):\n" + forward, training);
  patch_traced(module, at::kMeta);
  return module.forward({at::ones({1})}).toTensor().device();
}

TEST(PatchTracedTest, TheCpuStaysWhereTheAuthorOfAScriptedModelWroteIt) {
  EXPECT_TRUE(made_on("  return torch.ones([2], device=torch.device('cpu'))\n").is_cpu());
  EXPECT_TRUE(made_on("  return torch.tensor([1.0], device=torch.device('cpu'))\n").is_cpu());
  EXPECT_TRUE(
      made_on("  if x.size(0) == 1:\n    x = x + 1\n  return x.to(torch.device('cpu'), 7)\n").is_cpu());
}

TEST(PatchTracedTest, TheCpuOnWhichAModelWasTracedDoesNotStay) {
  EXPECT_TRUE(made_on("  return torch.ones([2], dtype=None, layout=None, device=torch.device('cpu'), "
                      "pin_memory=False)\n")
                  .is_meta());
  EXPECT_TRUE(made_on("  return torch.to(x, dtype=6, layout=0, device=torch.device('cpu'))\n").is_meta());
  EXPECT_TRUE(made_on("  return x.to(torch.device('cpu'), 7)\n").is_meta());
  // A trace may contain a scripted function.
  EXPECT_TRUE(
      made_on("  if x.size(0) == 1:\n    x = x + 1\n  y = torch.zeros([1], dtype=None, layout=None, "
              "device=torch.device('cpu'), pin_memory=False)\n  return y + x.to(torch.device('cpu'), 7)\n")
          .is_meta());
}

TEST(PatchExportedTest, EveryDeviceBecomesTheModelsAndNoFlagChanges) {
  for (const char* making : {"torch.ones([4], device=torch.device('cpu'))",
                             "torch.dropout(x, 0., self.training).to(torch.device('cpu'))",
                             "torch.to(x, dtype=6, layout=0, device=torch.device('cuda:3'))"}) {
    Module module = traced(
        std::string("def forward(self, x):\n  if self.training:\n    x = x + 0\n  return ") + making + "\n",
        true);
    patch_exported(module, at::kMeta);
    EXPECT_TRUE(module.forward({at::ones({4})}).toTensor().is_meta()) << making;
  }
  Module always = traced("def forward(self, x):\n  return torch.dropout(x, 0.5, True)\n", true);
  patch_exported(always, at::kCPU);
  EXPECT_TRUE(drops(run(always, false)));
}

/// A module in whose forward each call of torch.ones() has become the constant `value`.
Module with_constant(const std::string& forward, const at::Tensor& value) {
  Module module("Traced");
  module.define(forward);
  torch::jit::Graph& graph = *torch::jit::toGraphFunction(module.get_method("forward").function()).graph();
  for (auto node = graph.nodes().begin(); node != graph.nodes().end(); ++node) {
    if (node->kind() != c10::aten::ones) continue;
    const torch::jit::WithInsertPoint before(*node);
    node->output()->replaceAllUsesWith(graph.insertConstant(value));
    node.destroyCurrent();
  }
  return module;
}

const auto kElsewhere = at::TensorOptions().device(at::kMeta);

TEST(PatchTracedTest, AConstantTensorMovesToTheModelsDevice) {
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{2, 3}, {}}) {
    Module module = with_constant("def forward(self, x):\n  return torch.ones([1])\n", at::ones(sizes));
    patch_traced(module, at::kMeta);
    EXPECT_TRUE(module.forward({at::ones({1})}).toTensor().is_meta());
    Module here = with_constant("def forward(self, x):\n  return torch.ones([1])\n", at::ones(sizes));
    patch_traced(here, at::kCPU);
    EXPECT_TRUE(here.forward({at::ones({1})}).toTensor().equal(at::ones(sizes)));
  }
}

TEST(PatchTracedTest, AConstantTensorThatIsThereTwiceMovesOnce) {
  Module module =
      with_constant("def forward(self, x):\n  return torch.ones([1]), torch.ones([1])\n", at::ones({2}));
  patch_traced(module, at::kMeta);
  std::vector<at::Tensor> constants;
  for (const auto* node :
       torch::jit::toGraphFunction(module.get_method("forward").function()).graph()->nodes()) {
    const auto value = torch::jit::toIValue(node->output());
    if (value && value->isTensor()) constants.push_back(value->toTensor());
  }
  ASSERT_EQ(constants.size(), 2u);
  EXPECT_TRUE(constants[0].is_meta());
  EXPECT_TRUE(constants[0].is_same(constants[1]));
}

TEST(PatchTracedTest, ConstantListsOfTensorsMoveToo) {
  Module module("Traced");
  module.define("def forward(self):\n  return [torch.ones([1])]\n");
  torch::jit::Graph& graph = *torch::jit::toGraphFunction(module.get_method("forward").function()).graph();
  const torch::jit::WithInsertPoint before(*graph.nodes().begin());
  graph.outputs()[0]->replaceAllUsesWith(graph.insertConstant(c10::List<at::Tensor>({at::ones({2})})));
  patch_traced(module, at::kMeta);
  EXPECT_TRUE(module.forward({}).toTensorVector().at(0).is_meta());
}

// Tracing computes with sizes in tensors of one number.
TEST(PatchTracedTest, NumbersInTheArithmeticOfSizesStayOnTheHost) {
  Module module = with_constant(
      "def forward(self, x):\n"
      "  half = torch.floor_divide(torch.tensor(x.size(0)), torch.ones([]))\n"
      "  return torch.zeros([int(half * torch.ones([]))], device=x.device)\n",
      at::scalar_tensor(2, at::kLong));
  patch_traced(module, at::kMeta);
  EXPECT_EQ(module.forward({at::ones({9}, kElsewhere)}).toTensor().size(0), 8);
}

TEST(PatchTracedTest, BranchesAreMendedToo) {
  Module module = traced(
      "def forward(self, x):\n"
      "  if x.size(0) > 1:\n"
      "    x = torch.dropout(x, 0.5, True)\n"
      "  return x\n",
      true);
  patch_traced(module, at::kCPU);
  EXPECT_FALSE(drops(run(module, false)));
}

}  // namespace
}  // namespace accel::train
