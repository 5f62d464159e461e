#include "train/graph/passes/fuse_head.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "train/graph/run/fused_head.hpp"

namespace accel::train {
namespace {

using ::testing::HasSubstr;
using torch::jit::Module;

Module linear(double value) {
  Module module("Linear");
  module.register_parameter("weight", at::full({3, 2}, value), false);
  module.define("def forward(self, x):\n  return torch.linear(x, self.weight)\n");
  return module;
}

/// A model whose forward is `body`. Its two linears share one class.
Module model(const std::string& body) {
  Module root("Root");
  const Module first = linear(2);
  root.register_module("first", first);
  root.register_module("second", first.copy());
  root.attr("second").toModule().setattr("weight", at::full({3, 2}, 3.0));
  root.register_parameter("weight", at::ones({4, 3}), false);
  root.define("def inner(self, x):\n  return torch.relu(x), self.second.forward(x)\n");
  root.define("def forward(self, x):\n" + body);
  return root;
}

/// The forward with a head that returns the sum of its weight, and with one that returns nothing.
struct Results {
  c10::IValue fused;
  c10::IValue logits;
  int calls = 0;
};

Results results_of(const Module& root, const at::Tensor& x) {
  Results results;
  const HeadFunction head = [&](const at::Tensor&, const at::Tensor& weight, const at::Tensor&) {
    ++results.calls;
    return weight.sum();
  };
  const HeadFunction nothing = [](const auto&...) { return at::Tensor(); };
  torch::jit::Method forward = root.get_method(kFusedForward);
  {
    const HeadScope scope(head);
    results.fused = forward({x});
  }
  const HeadScope scope(nothing);
  results.logits = forward({x});
  return results;
}

TEST(FuseHeadTest, TheLastLinearIsReplacedAndNoOther) {
  const at::Tensor x = at::ones({1, 2});
  const Module root = model(
      "  y = self.first.forward(x)\n"
      "  return self.second.forward(y[:, :2]).float()\n");
  const FoundHead found = add_fused_forward(root, "0");
  ASSERT_TRUE(found.is_found()) << found.missing;
  EXPECT_EQ(found.module, "second");
  Module callable = root;
  const at::Tensor plain = callable.forward({x}).toTensor();
  const Results results = results_of(root, x);
  EXPECT_EQ(results.calls, 1);
  EXPECT_EQ(results.fused.toTensor().item<double>(), 18);  // 3 * 2 elements of 3.
  EXPECT_TRUE(results.logits.toTensor().equal(plain));
  EXPECT_TRUE(callable.forward({x}).toTensor().equal(plain));
}

TEST(FuseHeadTest, TuplesDictsAndMethodsAreFollowed) {
  struct Case {
    const char* body;
    const char* output;
    const char* module;
  };
  for (const auto& [body, output, module] : std::vector<Case>{
           {"  return x, self.first.forward(x)\n", "1", "first"},
           {"  return {'hidden': x, 'logits': self.first.forward(x)}\n", "logits", "first"},
           {"  return {'hidden': x, 'logits': self.first.forward(x)}\n", "1", "first"},
           // A name counts before an index, as it does when the output is taken.
           {"  return {'1': self.second.forward(x), '0': self.first.forward(x)}\n", "0", "first"},
           {"  a, b = self.inner(x)\n  return b, a\n", "0", "second"},
           {"  return torch.linear(self.first.forward(x), self.weight, None)\n", "0", ""},
       }) {
    const Module root = model(body);
    const FoundHead found = add_fused_forward(root, output);
    ASSERT_TRUE(found.is_found()) << body << found.missing;
    EXPECT_EQ(found.module, module) << body;
    EXPECT_EQ(results_of(root, at::ones({1, 2})).calls, 1) << body;
  }
}

TEST(FuseHeadTest, AHeadThatIsNotTheWeightOfItsModuleIsKnown) {
  EXPECT_TRUE(add_fused_forward(model("  return self.first.forward(x)\n"), "0").has_own_weight);
  EXPECT_TRUE(add_fused_forward(model("  return torch.linear(x, self.weight, None)\n"), "0").has_own_weight);
  const FoundHead other = add_fused_forward(model("  return torch.linear(x, self.weight + 1, None)\n"), "0");
  ASSERT_TRUE(other.is_found()) << other.missing;
  EXPECT_FALSE(other.has_own_weight);
  EXPECT_FALSE(add_fused_forward(model("  return torch.linear(x, self.first.weight)\n"), "0").has_own_weight);
}

TEST(FuseHeadTest, WhatUsesOrChangesTheLogitsIsNamed) {
  struct Case {
    const char* body;
    const char* output;
    const char* reason;
  };
  for (const auto& [body, output, reason] : std::vector<Case>{
           {"  return self.first.forward(x) * 2\n", "0", "'forward' makes it by aten::mul"},
           {"  y = self.first.forward(x)\n  return y, y.sum()\n", "0",
            "'forward' uses its logits for something else"},
           {"  y = self.first.forward(x)\n  y.mul_(2)\n  return y\n", "0", "'forward' uses its logits"},
           {"  y = self.first.forward(x)\n  return y, y\n", "1", "'forward' uses its logits"},
           {"  if bool(x.sum() > 0):\n    y = self.first.forward(x)\n  else:\n    y = x\n  return y\n", "0",
            "'forward' makes it by prim::If"},
           {"  return self.first.forward(x).to(15)\n", "0", "'forward' makes it by aten::to"},
           {"  return x, self.first.forward(x)\n", "2", "'forward' does not return it"},
           {"  return {'logits': self.first.forward(x)}\n", "hidden", "'forward' does not return it"},
       }) {
    const Module root = model(body);
    const FoundHead found = add_fused_forward(root, output);
    EXPECT_FALSE(found.is_found()) << body;
    EXPECT_THAT(found.missing, HasSubstr(reason)) << body;
    EXPECT_FALSE(root.find_method(kFusedForward)) << body;
  }
}

TEST(FuseHeadTest, WithoutAScopeItIsALinear) {
  const Module root = model("  return self.first.forward(x)\n");
  ASSERT_TRUE(add_fused_forward(root, "0").is_found());
  EXPECT_TRUE(root.get_method(kFusedForward)({at::ones({1, 2})}).toTensor().equal(at::full({1, 3}, 4.0)));
}

}  // namespace
}  // namespace accel::train
