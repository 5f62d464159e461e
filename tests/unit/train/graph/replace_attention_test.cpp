#include "train/graph/passes/replace_attention.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/function_impl.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "train/graph/analysis/sequence_mixing.hpp"
#include "train/graph/run/module_attention.hpp"

namespace accel::train {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using torch::jit::Module;

/// A model whose forward takes x [batch, heads, length, width] and positions [batch, length].
Module model(const std::string& forward) {
  Module root("Root");
  root.register_parameter("weight", at::full({3, 4}, 0.5), false);
  root.register_buffer("slopes", at::full({2, 1, 1}, 0.25));
  Module inner("Inner");
  inner.define(
      "def forward(self, x, mask: Optional[Tensor]):\n"
      "  return torch.scaled_dot_product_attention(x, x, x, mask)\n");
  root.register_module("inner", inner);
  root.define("def forward(self, x, positions):\n" + forward);
  return root;
}

at::Tensor heads(std::int64_t length) {
  return at::randn({1, 2, length, 4}, at::make_generator<at::CPUGeneratorImpl>(1), at::kFloat);
}

std::vector<at::Tensor> masks_of(const AttentionCode& code, const Module& root, const at::Tensor& x,
                                 const at::Tensor& positions) {
  torch::jit::GraphFunction function(c10::QualifiedName("masks"), code.masks, nullptr);
  std::vector<at::Tensor> masks;
  const c10::IValue result = function({root._ivalue(), x, positions});
  for (const c10::IValue& mask : result.toTupleRef().elements()) masks.push_back(mask.toTensor());
  return masks;
}

std::string refusal_of(const Module& root) {
  try {
    (void)replace_attention(root);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "";
}

TEST(ReplaceAttentionTest, OnlyARegisteredModuleHasItsFunction) {
  const std::string forward =
      "  y = torch.scaled_dot_product_attention(x, x, x, is_causal=True)\n"
      "  return self.inner.forward(torch.scaled_dot_product_attention(y, x, y, scale=0.5), None)\n";
  const at::Tensor expected = model(forward).forward({heads(5), at::arange(5)}).toTensor();
  Module root = model(forward);
  const AttentionCode code = replace_attention(root);
  EXPECT_EQ(code.masks, nullptr);
  ASSERT_EQ(code.places.size(), 3U);
  EXPECT_EQ(code.places[0].module, "");
  EXPECT_EQ(code.places[0].number, 0);
  EXPECT_EQ(code.places[1].number, 1);
  EXPECT_EQ(code.places[2].module, "inner");
  EXPECT_TRUE(root.forward({heads(5), at::arange(5)}).toTensor().equal(expected));
  std::vector<AttentionCall> calls;
  const AttentionRegistration registration({{root._ivalue().get(), [&](const AttentionCall& call) {
                                               calls.push_back(call);
                                               return call.query;
                                             }}});
  const at::Tensor x = heads(5);
  EXPECT_TRUE(root.forward({x, at::arange(5)}).toTensor().equal(at::scaled_dot_product_attention(x, x, x)));
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_TRUE(calls[0].is_causal);
  EXPECT_FALSE(calls[0].scale.has_value());
  EXPECT_EQ(calls[1].scale, 0.5);
}

TEST(ReplaceAttentionTest, MasksAreComputedWithoutTheRestOfTheModel) {
  const std::string forward =
      "  rows = positions.unsqueeze(2)\n"
      "  causal = (positions.unsqueeze(1) <= rows).unsqueeze(1)\n"
      "  near = causal & ((rows - positions.unsqueeze(1)) < 2).unsqueeze(1)\n"
      "  bias = self.slopes * (positions.unsqueeze(1) - rows).unsqueeze(1)\n"
      "  bias = bias.masked_fill(~causal, -1e9)\n"
      "  y = self.inner.forward(x * self.weight[0], near)\n"
      "  y = torch.scaled_dot_product_attention(y, x, x, bias)\n"
      "  return torch.scaled_dot_product_attention(y, x, x, near)\n";
  Module root = model(forward);
  const AttentionCode code = replace_attention(root);
  ASSERT_EQ(code.places.size(), 3U);
  EXPECT_EQ(code.places[0].mask, code.places[2].mask);
  EXPECT_NE(code.places[0].mask, code.places[1].mask);
  const at::Tensor x = heads(6);
  const at::Tensor positions = at::tensor({0, 1, 2, 0, 1, 2}, at::kLong).unsqueeze(0);
  const std::vector<at::Tensor> masks = masks_of(code, root, x, positions);
  ASSERT_EQ(masks.size(), 2U);
  const at::Tensor& near = masks[*code.places[0].mask];
  const at::Tensor& bias = masks[*code.places[1].mask];
  for (std::int64_t row = 0; row < 6; ++row) {
    for (std::int64_t column = 0; column < 6; ++column) {
      const std::int64_t before = row % 3 - column % 3;
      EXPECT_EQ(near[0][0][row][column].item<bool>(), before == 0 || before == 1);
      EXPECT_EQ(bias[0][1][row][column].item<double>(),
                before >= 0 ? -0.25 * static_cast<double>(before) : -1e9);
    }
  }
  EXPECT_EQ(find_sequence_mixing(*code.rest), std::nullopt);
}

TEST(ReplaceAttentionTest, AMaskThatNeedsMoreThanTheInputsIsRefused) {
  EXPECT_THAT(refusal_of(model("  return self.inner.forward(x, self.weight[:, :3])\n")),
              AllOf(HasSubstr("the attention mask of 'inner' depends on the parameter 'weight'"),
                    HasSubstr("cannot be computed for the whole sequence")));
  EXPECT_THAT(refusal_of(model("  if positions.sum() > 0:\n"
                               "    m = positions > 1\n"
                               "    y = torch.scaled_dot_product_attention(x, x, x, m)\n"
                               "  else:\n"
                               "    y = x\n"
                               "  return y\n")),
              HasSubstr("is made in a branch"));
}

TEST(ReplaceAttentionTest, TheSizesOfALookupAreThoseOfItsIndices) {
  Module root = model(
      "  found = torch.embedding(self.weight, positions)\n"
      "  mask = torch.ones([found.size(1), found.size(1)]).tril() > 0\n"
      "  return self.inner.forward(x, mask)\n");
  const AttentionCode code = replace_attention(root);
  const at::Tensor mask = masks_of(code, root, heads(3), at::zeros({1, 3}, at::kLong)).at(0);
  EXPECT_TRUE(mask.equal(at::ones({3, 3}, at::kBool).tril()));
}

std::optional<std::string> mixing_of(const std::string& forward) {
  Module root = model(forward);
  return find_sequence_mixing(*replace_attention(root).rest);
}

TEST(SequenceMixingTest, OperatorsAlongTheSequenceAreFound) {
  EXPECT_THAT(mixing_of("  return x.cumsum(2)\n").value_or(""), StartsWith("aten::cumsum"));
  EXPECT_THAT(mixing_of("  return x.flip([2])\n").value_or(""), StartsWith("aten::flip"));
  EXPECT_THAT(mixing_of("  return torch.conv1d(x[0], x[0])\n").value_or(""), StartsWith("aten::conv1d"));
  EXPECT_THAT(mixing_of("  return x + torch.arange(x.size(2)).unsqueeze(1)\n").value_or(""),
              StartsWith("aten::arange"));
  EXPECT_THAT(mixing_of("  p = torch.softmax(torch.matmul(x, x.transpose(2, 3)), -1)\n"
                        "  return torch.matmul(torch.dropout(p, 0.0, False), x)\n")
                  .value_or(""),
              StartsWith("aten::softmax"));
}

TEST(SequenceMixingTest, WhatAMaskOrAResultNeedsIsNotFound) {
  EXPECT_EQ(mixing_of("  mask = torch.arange(x.size(2)).cumsum(0) >= 0\n"
                      "  return self.inner.forward(x, mask)\n"),
            std::nullopt);
  EXPECT_EQ(mixing_of("  return torch.softmax(x, -1) * 2\n"), std::nullopt);
}

}  // namespace
}  // namespace accel::train
