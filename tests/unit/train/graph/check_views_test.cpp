#include "train/graph/passes/check_views.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "train/graph/run/part_view.hpp"

namespace accel::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using torch::jit::Block;
using torch::jit::Module;
using torch::jit::Node;

Module module_with(const char* name, const std::string& code) {
  Module module(name);
  module.define(code);
  return module;
}

/// A model whose forward is `body`. `y` in it is what a module returned, [2, 3, 8].
Module model(const std::string& body) {
  Module root("Root");
  // What a linear computes is not computed element by element.
  const Module inner = module_with("Inner", "def forward(self, x):\n  return torch.roll(x + 1, 0, 0)\n");
  root.register_module("inner", inner);
  root.register_module("same", inner.copy());
  root.register_module("whole", module_with("Whole", "def forward(self, x):\n  return torch.mm(x, x)\n"));
  root.register_module("act", module_with("Act", "def forward(self, x):\n  return torch.silu(x) * 2\n"));
  root.register_module(
      "swap", module_with("Swap", "def forward(self, x):\n  return torch.relu(x).transpose(1, 2)\n"));
  Module helper("Helper");
  helper.register_module("up", inner.copy());
  helper.register_module("down", inner.copy());
  helper.define("def forward(self, x):\n  return self.up.forward(x)\n");
  root.register_module("helper", helper);
  root.register_module("pair", module_with("Pair", "def forward(self, x):\n  return x, x + 1\n"));
  root.register_module("list", module_with("List", "def forward(self, x):\n  return [x, x + 1]\n"));
  root.define("def forward(self, x, flag: bool):\n  y = self.inner.forward(x)\n" + body);
  return root;
}

void collect(const Block* block, std::vector<std::string>& found) {
  for (const Node* node : block->nodes()) {
    for (const Block* inner : node->blocks()) collect(inner, found);
    const std::string kind = node->kind().toQualString();
    if (kind != kCheckView && kind != kCheckCut) continue;
    EXPECT_EQ(node->input(0)->node()->kind(), c10::prim::CallMethod);
    found.push_back((kind == kCheckView ? "view: " : "cut: ") +
                    std::string(node->next()->kind().toUnqualString()));
  }
}

/// The checks in a method, each with the operator that follows it.
std::vector<std::string> checks_in(const Module& module, const char* method = "forward") {
  std::vector<std::string> found;
  collect(torch::jit::toGraphFunction(module.get_method(method).function()).graph()->block(), found);
  return found;
}

const GivesPart kPlan = {{"inner", true},  {"same", true},      {"pair", true},        {"list", true},
                         {"whole", false}, {"helper.up", true}, {"helper.down", false}};

std::vector<std::string> checks_of(const std::string& body) {
  const Module root = model(body);
  check_views(root, kPlan);
  return checks_in(root);
}

/// The checks of a forward that returns `expression`.
std::vector<std::string> checks_of_result(const std::string& expression) {
  return checks_of("  return " + expression + "\n");
}

TEST(CheckViewsTest, AViewOfWhatAModuleReturnedIsChecked) {
  EXPECT_THAT(checks_of_result("y.view([2, 3, -1, 4])"), ElementsAre("view: view"));
  EXPECT_THAT(checks_of_result("y.reshape([x.size(0), -1])"), ElementsAre("view: reshape"));
  EXPECT_THAT(checks_of_result("self.same.forward(y).view([6, 8])"), ElementsAre("view: view"));
  EXPECT_THAT(checks_of("  if flag:\n"
                        "    y = y.view([6, 8])\n"
                        "  return y\n"),
              ElementsAre("view: view"));
}

TEST(CheckViewsTest, AViewOfSomethingElseIsNotChecked) {
  EXPECT_THAT(checks_of_result("x.view([6, 8])"), IsEmpty());
  EXPECT_THAT(checks_of_result("self.whole.forward(y).view([6, 8])"), IsEmpty());
  EXPECT_THAT(checks_of_result("y.transpose(0, 1).reshape([6, 8])"), IsEmpty());
  // The tensors come from the operator that takes a tuple apart.
  EXPECT_THAT(checks_of("  a, b = self.pair.forward(y)\n"
                        "  return a.view([6, 8]) + b.chunk(2, -1)[0]\n"),
              IsEmpty());
}

TEST(CheckViewsTest, WhatTakesAPartOfADimensionIsChecked) {
  for (const auto& [expression, kind] : std::vector<std::pair<std::string, std::string>>{
           {"torch.chunk(y, 2, -1)", "chunk"},
           {"torch.unsafe_chunk(y, 2, -1)", "unsafe_chunk"},
           {"torch.split(y, 4, -1)", "split"},
           {"torch.split(y, [2, 6], -1)", "split"},
           {"torch.unsafe_split(y, 4, -1)", "unsafe_split"},
           {"torch.split_with_sizes(y, [2, 6], -1)", "split_with_sizes"},
           {"torch.unsafe_split_with_sizes(y, [2, 6], -1)", "unsafe_split_with_sizes"},
           {"torch.tensor_split(y, 2, -1)", "tensor_split"},
           {"torch.tensor_split(y, [2], -1)", "tensor_split"},
           {"torch.narrow(y, -1, 0, 2)", "narrow"},
           {"torch.unflatten(y, -1, [2, -1])", "unflatten"},
           {"torch.unflatten(y, -1, [x.size(0), -1])", "unflatten"},
           {"torch.select(y, -1, 0)", "select"},
           {"torch.unbind(y, -1)", "unbind"},
           {"torch.glu(y, -1)", "glu"},
           {"y[1:]", "slice"},
           {"y[:, :, :4]", "slice"},
           {"y[:, :, ::2]", "slice"},
           {"y[:, :, :x.size(0)]", "slice"},
       })
    EXPECT_THAT(checks_of_result(expression), ElementsAre("cut: " + kind)) << expression;
  EXPECT_THAT(checks_of_result("y[:, 1:, 4:]"), ElementsAre("cut: slice", "cut: slice"));
  EXPECT_THAT(checks_of("  if flag:\n"
                        "    y = y[:, :, 4:]\n"
                        "  return y\n"),
              ElementsAre("cut: slice"));
}

TEST(CheckViewsTest, WhatIsComputedElementByElementIsFollowed) {
  for (const char* expression : {
           "torch.silu(y).chunk(2, -1)",
           "self.act.forward(y).chunk(2, -1)",
           "self.act.forward(torch.dropout(y + 1, 0.1, True)).type_as(x).chunk(2, -1)",
           "(torch.gelu(y) * x).chunk(2, -1)",
       })
    EXPECT_THAT(checks_of_result(expression), ElementsAre("cut: chunk")) << expression;
  EXPECT_THAT(checks_of_result("torch.relu(y).view([6, 8])"), ElementsAre("view: view"));
  EXPECT_THAT(checks_of_result("self.helper.forward(x).chunk(2, -1)"), ElementsAre("cut: chunk"));
  EXPECT_THAT(checks_of("  if flag:\n"
                        "    y = torch.relu(y)\n"
                        "  return y.chunk(2, -1)\n"),
              ElementsAre("cut: chunk"));
}

TEST(CheckViewsTest, WhatIsRightForAnyWidthIsNotChecked) {
  for (const char* expression : {
           "y[:]",
           "y[:, :, :]",
           "y[:, 0:, ::1]",
           "torch.unflatten(y, -1, [-1, 2])",
           "torch.unflatten(y, -1, [-1, x.size(0)])",
       })
    EXPECT_THAT(checks_of_result(expression), IsEmpty()) << expression;
}

TEST(CheckViewsTest, ACutOfSomethingElseIsNotChecked) {
  for (const char* expression : {
           "torch.chunk(x, 2, -1)",
           "self.whole.forward(y).chunk(2, -1)",
           "torch.matmul(y, x).chunk(2, -1)",
           "y.transpose(1, 2).chunk(2, -1)",
           "self.swap.forward(y).chunk(2, -1)",
           "torch.unflatten(y, -1, [-1, 2]).unbind(-1)",
           "torch.unbind(y, dim=\"N\")",
           "self.list.forward(y)[:1]",
           "self.list.forward(y)[0]",
           "y.sum(-1)",
       })
    EXPECT_THAT(checks_of_result(expression), IsEmpty()) << expression;
}

TEST(CheckViewsTest, AllMethodsAreCheckedAndThoseOfAClassOnce) {
  Module leaf = module_with("Leaf", "def forward(self, x):\n  return x + 1\n");
  Module part("Part");
  part.register_module("leaf", leaf);
  part.define("def forward(self, x):\n  return self.leaf.forward(x).view([6, 8])\n");
  part.define("def other(self, x):\n  return self.leaf.forward(x).chunk(2, -1)\n");
  Module root("Root");
  root.register_module("first", part);
  root.register_module("second", part.copy());
  root.define("def forward(self, x):\n  return self.first.forward(x) + self.second.forward(x)\n");
  check_views(root, {{"first.leaf", true}, {"second.leaf", true}});
  EXPECT_THAT(checks_in(root.attr("second").toModule()), ElementsAre("view: view"));
  EXPECT_THAT(checks_in(root.attr("first").toModule(), "other"), ElementsAre("cut: chunk"));
  EXPECT_THAT(checks_in(root), IsEmpty());
}

TEST(CheckViewsTest, ACheckGetsWhatTheOperatorGetsAndChangesNothing) {
  const std::string body =
      "  z = y.view([x.size(0), 3, -1, 4])\n"
      "  return z.sum(2) + y[:, :, 4:]\n";
  const at::Tensor x = at::arange(48, at::kFloat).view({2, 3, 8});
  const at::Tensor expected = model(body).forward({x, true}).toTensor();
  Module root = model(body);
  check_views(root, kPlan);
  EXPECT_TRUE(root.forward({x, true}).toTensor().equal(expected));
  std::vector<std::vector<std::int64_t>> sizes;
  std::vector<std::int64_t> dims;
  const ViewCheckRegistration registration(
      [&](const at::Tensor& tensor, at::IntArrayRef wanted) {
        EXPECT_TRUE(tensor.equal(x + 1));
        sizes.push_back(wanted.vec());
      },
      [&](const at::Tensor& tensor, std::int64_t dim) {
        EXPECT_TRUE(tensor.equal(x + 1));
        dims.push_back(dim);
      });
  EXPECT_TRUE(root.forward({x, true}).toTensor().equal(expected));
  EXPECT_THAT(sizes, ElementsAre(ElementsAre(2, 3, -1, 4)));
  EXPECT_THAT(dims, ElementsAre(2));
}

}  // namespace
}  // namespace accel::train
