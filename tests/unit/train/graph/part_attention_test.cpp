#include "train/graph/passes/part_attention.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "train/graph/run/module_attention.hpp"

namespace accel::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using torch::jit::Module;

Module child(const char* name, const char* body = "x * 2") {
  Module module(name);
  module.define(std::string("def forward(self, x):\n  return ") + body + "\n");
  return module;
}

/// A model whose module "attention" has the code `body` of x [batch, heads, length, width] and `p`.
Module model(const std::string& body) {
  Module attention("Attention");
  for (const char* name : {"q_proj", "o_proj", "gathered", "norm"})
    attention.register_module(name, child(name));
  Module wrapper("Wrapper");
  wrapper.register_module("base_layer", child("base"));
  wrapper.define("def forward(self, x):\n  return self.base_layer.forward(x)\n");
  attention.register_module("wrapped_q", wrapper);
  attention.register_module("wrapped_o", wrapper.clone());
  attention.define(
      "def attend(self, q, p: float):\n  return torch.scaled_dot_product_attention(q, q, q, None, p)\n"
      "def forward(self, x, p: float):\n" +
      body);
  Module root("Root");
  root.register_module("attention", attention);
  root.define("def forward(self, x, p: float):\n  return self.attention.forward(x, p)\n");
  return root;
}

const std::unordered_map<std::string, bool> kPlan = {{"attention.q_proj", true},
                                                     {"attention.o_proj", false},
                                                     {"attention.gathered", false},
                                                     {"attention.wrapped_q.base_layer", true},
                                                     {"attention.wrapped_o.base_layer", false}};

std::vector<std::int64_t> found_in(const std::string& body) {
  const auto found = find_part_attention(model(body), kPlan);
  return found.contains("attention") ? found.at("attention") : std::vector<std::int64_t>{};
}

TEST(PartAttentionTest, AQueryThatComesFromACutLinearIsAPart) {
  // Number 0 is in `attend`.
  EXPECT_THAT(found_in("  q = self.norm.forward(self.q_proj.forward(x).transpose(1, 2))\n"
                       "  q = torch.cat([q[..., 1:], -q[..., :1]], -1)\n"
                       "  return torch.scaled_dot_product_attention(q, x, x, None, p)\n"),
              ElementsAre(1));
  EXPECT_THAT(found_in("  if p > 0.5:\n    q = x\n  else:\n    q = self.q_proj.forward(x)\n"
                       "  return torch.scaled_dot_product_attention(q, x, x, None, p)\n"),
              ElementsAre(1));
}

TEST(PartAttentionTest, AModuleIsWhatTheModulesInItAre) {
  EXPECT_THAT(found_in("  q = self.wrapped_q.forward(x)\n"
                       "  return torch.scaled_dot_product_attention(q, x, x, None, p)\n"),
              ElementsAre(1));
}

TEST(PartAttentionTest, OnlyTheResultOfABranchOrATupleThatIsAPartIsOne) {
  const std::string branch =
      "  if p > 0.5:\n    a, b = self.q_proj.forward(x), x\n  else:\n    a, b = x, x * 2\n";
  const std::string loop = "  a, b = x, x\n  for i in range(2):\n    a, b = self.q_proj.forward(x), b * 2\n";
  const std::string tuple = "  pair = (self.q_proj.forward(x), x)\n  a, b = pair\n";
  for (const std::string& code : {branch, loop, tuple}) {
    EXPECT_THAT(found_in(code + "  return torch.scaled_dot_product_attention(a, x, x, None, p)\n"),
                ElementsAre(1))
        << code;
    EXPECT_THAT(found_in(code + "  return torch.scaled_dot_product_attention(b, x, x, None, p)\n"), IsEmpty())
        << code;
  }
}

TEST(PartAttentionTest, AWholeQueryIsNoPart) {
  for (const std::string query :
       {"x", "self.norm.forward(x)", "self.gathered.forward(x)",
        "self.o_proj.forward(self.q_proj.forward(x))", "self.wrapped_o.forward(self.q_proj.forward(x))",
        "self.attend(self.q_proj.forward(x), p)", "x.to(self.q_proj.forward(x).device)",
        "x.reshape(self.q_proj.forward(x).size(0), -1, x.size(2), x.size(3))"}) {
    EXPECT_THAT(
        found_in("  q = " + query +
                 "\n"
                 "  return torch.scaled_dot_product_attention(q, self.q_proj.forward(x), x, None, p)\n"),
        IsEmpty())
        << query;
  }
  // What a method gets is not followed.
  EXPECT_THAT(found_in("  return self.attend(self.q_proj.forward(x), p)\n"), IsEmpty());
}

TEST(PartAttentionTest, AnAttentionThatDropsNothingDoesNotCount) {
  EXPECT_THAT(found_in("  q = self.q_proj.forward(x)\n"
                       "  a = torch.scaled_dot_product_attention(q, q, q, None, 0.0)\n"
                       "  return torch.scaled_dot_product_attention(q, a, a, None, p)\n"),
              ElementsAre(2));
}

TEST(PartAttentionTest, TheModelComputesWhatItDid) {
  const std::string body =
      "  q = self.q_proj.forward(x)\n"
      "  return torch.scaled_dot_product_attention(q, q, x, None, p)\n";
  const at::Tensor x = at::randn({1, 2, 3, 4}, at::make_generator<at::CPUGeneratorImpl>(1), at::kFloat);
  Module plain = model(body);
  Module changed = model(body);
  EXPECT_THAT(find_part_attention(changed, kPlan), UnorderedElementsAre(Pair("attention", ElementsAre(1))));
  EXPECT_TRUE(at::equal(changed.forward({x, 0.0}).toTensor(), plain.forward({x, 0.0}).toTensor()));
}

}  // namespace
}  // namespace accel::train
