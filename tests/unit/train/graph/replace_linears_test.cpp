#include "train/graph/passes/replace_linears.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "train/graph/run/autocast.hpp"
#include "train/graph/run/float8_linear.hpp"
#include "train/graph/run/module_linear.hpp"

namespace accel::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using torch::jit::Module;

constexpr const char* kForward =
    "def forward(self, x, twice: bool):\n"
    "  if twice:\n"
    "    x = torch.linear(x, self.weight, self.bias)\n"
    "  return torch.linear(x, self.weight, self.bias)\n";

Module linear(double value) {
  Module module("Linear");
  module.register_parameter("weight", at::full({2, 2}, value), false);
  module.register_parameter("bias", at::ones({2}), false);
  module.define(kForward);
  return module;
}

/// A model with two linears of one class. Its own forward uses the weight of the second by another name.
Module model() {
  Module root("Root");
  const Module first = linear(1);
  root.register_module("first", first);
  root.register_module("second", first.copy());
  root.attr("second").toModule().setattr("weight", at::full({2, 2}, 2.0));
  root.define(
      "def forward(self, x, twice: bool):\n"
      "  y = self.second.forward(self.first.forward(x, twice), twice)\n"
      "  return torch.linear(y, self.second.weight)\n");
  return root;
}

LinearFunction counting(int& calls) {
  return [&calls](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
    ++calls;
    return at::linear(input, weight, bias);
  };
}

TEST(ReplaceLinearsTest, OnlyARegisteredInstanceHasItsFunction) {
  Module root = model();
  const at::Tensor x = at::ones({1, 2});
  const at::Tensor once = model().forward({x, false}).toTensor();
  const at::Tensor twice = model().forward({x, true}).toTensor();
  EXPECT_THAT(replace_linears(root, {"second"}), IsEmpty());
  EXPECT_TRUE(root.forward({x, true}).toTensor().equal(twice));
  int calls = 0;
  {
    const LinearRegistration registration(
        {{root.attr("second").toModule()._ivalue().get(), counting(calls)}});
    EXPECT_TRUE(root.forward({x, false}).toTensor().equal(once));
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(root.forward({x, true}).toTensor().equal(twice));
    EXPECT_EQ(calls, 3);
    EXPECT_THROW(LinearRegistration({}), Error);
  }
  EXPECT_TRUE(root.forward({x, true}).toTensor().equal(twice));
  EXPECT_EQ(calls, 3);
}

TEST(ReplaceLinearsTest, NamesModulesWithoutAProductOfTheirOwn) {
  Module root = model();
  Module holder(
      "Holder");  // As the out_proj of torch.nn.MultiheadAttention, whose weight another module reads.
  holder.register_parameter("weight", at::ones({2, 2}), false);
  holder.define("def forward(self, x):\n  return torch.matmul(x, self.weight)\n");
  root.register_module("holder", holder);
  EXPECT_THAT(replace_linears(root, {"first", "holder"}), ElementsAre("holder"));
}

TEST(Float8LinearTest, AnEmptyInputHasAnEmptyResultAndNoGradient) {
  const at::Tensor weight = at::ones({32, 16}).requires_grad_();
  const at::Tensor result = float8_linear(at::ones({0, 16}), weight, at::Tensor(), {});
  EXPECT_EQ(result.sizes(), at::IntArrayRef({0, 32}));
  result.sum().backward();
  EXPECT_TRUE(weight.grad().equal(at::zeros({32, 16})));
}

// A frozen weight, as under an adapter, and an input that needs no gradient.
TEST(Float8LinearTest, GradientsThatNobodyNeedsAreNotComputed) {
  const at::Tensor plain = at::ones({4, 16});
  const at::Tensor weight = at::full({32, 16}, 0.5);
  at::Tensor input = plain.detach().clone().requires_grad_();
  float8_linear(input, weight, at::Tensor(), {}).sum().backward();
  EXPECT_TRUE(input.grad().equal(at::full({4, 16}, 16.0)));  // 32 times 0.5: float8 holds all factors.
  EXPECT_FALSE(weight.grad().defined());
  at::Tensor trained = weight.detach().clone().requires_grad_();
  float8_linear(plain, trained, at::Tensor(), {}).sum().backward();
  EXPECT_TRUE(trained.grad().equal(at::full({32, 16}, 4.0)));
}

// The judge is autograd's rule for the plain linear.
TEST(Float8LinearTest, SavesWhatAPlainLinearSaves) {
  using Linear = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
  // Whether the graph of a product keeps the input and the weight.
  const auto saved = [](const Linear& linear, bool input_trains, bool weight_trains) {
    // Copies, because the graph holds each leaf as the place of its gradient.
    const at::Tensor input = at::ones({4, 16}).requires_grad_(input_trains).clone();
    const at::Tensor weight = at::ones({32, 16}).requires_grad_(weight_trains).clone();
    // A view holds the storage, and the tensor itself is held as an object.
    const auto holders = [](const at::Tensor& tensor) {
      return tensor.use_count() + tensor.storage().use_count();
    };
    const auto of_input = holders(input);
    const auto of_weight = holders(weight);
    const at::Tensor result = linear(input, weight);
    return std::pair(holders(input) > of_input, holders(weight) > of_weight);
  };
  const Linear float8 = [](const at::Tensor& x, const at::Tensor& w) {
    return float8_linear(x, w, at::Tensor(), {});
  };
  const Linear plain = [](const at::Tensor& x, const at::Tensor& w) { return at::linear(x, w); };
  for (const auto& [input, weight] :
       {std::pair(true, true), std::pair(true, false), std::pair(false, true), std::pair(false, false)})
    EXPECT_EQ(saved(float8, input, weight), saved(plain, input, weight)) << input << weight;
  EXPECT_EQ(saved(float8, true, false), std::pair(false, true));
}

/// Switches oneDNN off in _scaled_mm, as it is on a processor without AMX.
class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(before_); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;

 private:
  bool before_ = at::globalContext().userEnabledMkldnn();
};

TEST(Float8LinearTest, AutocastOnACpuRoundsTheResultAlone) {
  const WithoutOneDnn without;
  at::manual_seed(1);
  const at::Tensor input = at::randn({8, 48});
  const at::Tensor weight = at::randn({32, 48});
  for (const bool rowwise : {false, true}) {
    const at::Tensor plain = float8_linear(input, weight, at::Tensor(), {.rowwise = rowwise});
    const AutocastScope autocast({at::kCPU, true, at::kBFloat16});
    const at::Tensor rounded = float8_linear(input, weight, at::Tensor(), {.rowwise = rowwise});
    EXPECT_EQ(plain.scalar_type(), at::kFloat);
    EXPECT_EQ(rounded.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(rounded.equal(plain.to(at::kBFloat16))) << rowwise;
    // Eight bits of a float do not hold the result.
    EXPECT_FALSE(rounded.to(at::kFloat).equal(plain));
  }
}

}  // namespace
}  // namespace accel::train
