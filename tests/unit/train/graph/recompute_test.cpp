#include "train/graph/run/recompute.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "train/graph/run/autocast.hpp"
#include "train/graph/run/executor.hpp"
#include "train/graph/run/script_body.hpp"
#include "train/graph/tensors.hpp"

namespace accel::train {
namespace {

using torch::jit::Module;

class Counter final : public UnitHooks {
 public:
  void before_call(std::span<const c10::IValue>) override {}
  void after_call(std::span<const c10::IValue>, const c10::IValue&) override {}
  void before_recompute() override { ++begun; }
  void after_recompute() override { ++ended; }
  [[nodiscard]] c10::Device device() const override { return computes_on; }
  [[nodiscard]] std::string name() const override { return "layers.0"; }
  int begun = 0;
  int ended = 0;
  c10::Device computes_on = at::kCPU;
};

Module module_of(const std::string& forward) {
  at::manual_seed(3);
  Module module("Layer");
  module.register_parameter("weight", at::randn({4, 4}), false);
  module.attr("weight").toTensor().set_requires_grad(true);
  module.register_buffer("mean", at::zeros({4}));
  module.register_buffer("variance", at::ones({4}));
  module.define(forward);
  return module;
}

struct Outcome {
  at::Tensor value;
  at::Tensor input_gradient;
  at::Tensor weight_gradient;
  at::Tensor mean;
};

/// Runs `forward(x)` `calls` times, and backward through the sum of the first tensor.
Outcome outcome_of(const std::string& forward, bool recompute, Counter& counter, int calls,
                   bool input_requires_grad) {
  const Module module = module_of(forward);
  at::manual_seed(11);
  at::Tensor x = at::randn({8, 4});
  x.set_requires_grad(input_requires_grad);
  at::Tensor loss = at::zeros({});
  for (int call = 0; call < calls; ++call) {
    c10::IValue result;
    if (recompute) {
      const std::vector<c10::IValue> arguments{x};
      result = call_recomputed(module._ivalue(), script_body(module.type()->getMethod("forward"), "Net"),
                               arguments, counter);
    } else {
      result = module.get_method("forward")({x});
    }
    // Random numbers are drawn between forward and backward, as other layers do.
    loss = loss + at::rand({});
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      if (tensor.is_floating_point()) loss = loss + tensor.square().sum();
    });
  }
  loss.backward();
  return {loss, input_requires_grad ? x.grad() : at::Tensor(), module.attr("weight").toTensor().grad(),
          module.attr("mean").toTensor().clone()};
}

/// Results are equal bit for bit with one call. With two calls gradients are added in another order.
void expect_equal_outcomes(const std::string& forward, bool input_requires_grad = true) {
  for (const int calls : {1, 2}) {
    const auto equal = [&](const at::Tensor& a, const at::Tensor& b) {
      return calls == 1 ? a.equal(b) : at::allclose(a, b);
    };
    Counter counter;
    const Outcome plain = outcome_of(forward, false, counter, calls, input_requires_grad);
    EXPECT_EQ(counter.begun, 0);
    const Outcome again = outcome_of(forward, true, counter, calls, input_requires_grad);
    EXPECT_EQ(counter.begun, calls);
    EXPECT_EQ(counter.ended, calls);
    EXPECT_TRUE(again.value.equal(plain.value));
    if (input_requires_grad) {
      EXPECT_TRUE(equal(again.input_gradient, plain.input_gradient));
    }
    ASSERT_TRUE(plain.weight_gradient.defined());
    EXPECT_TRUE(equal(again.weight_gradient, plain.weight_gradient));
    EXPECT_TRUE(again.mean.equal(plain.mean));
  }
}

TEST(RecomputeTest, GradientsAreThoseWithoutIt) {
  expect_equal_outcomes("def forward(self, x):\n  return torch.tanh(x @ self.weight) @ self.weight\n");
}

TEST(RecomputeTest, DropoutDrawsTheSameNumbersAgain) {
  expect_equal_outcomes("def forward(self, x):\n  return torch.dropout(x @ self.weight, 0.5, True)\n");
}

TEST(RecomputeTest, RunningStatisticsAreCountedOnce) {
  expect_equal_outcomes(
      "def forward(self, x):\n"
      "  return torch.batch_norm(x @ self.weight, None, None, self.mean, self.variance, True, 0.1, 1e-5, "
      "False)\n");
}

TEST(RecomputeTest, ResultsMayBeNested) {
  expect_equal_outcomes(
      "def forward(self, x):\n"
      "  y = x @ self.weight\n"
      "  return (y, [y * 2.0, torch.tanh(y)], {'a': y - 1.0}, 3, torch.argmax(y))\n");
}

TEST(RecomputeTest, AnArgumentMayBeHandedThrough) {
  expect_equal_outcomes("def forward(self, x):\n  return (x, x @ self.weight)\n");
}

TEST(RecomputeTest, ParametersGetGradientsIfNoArgumentNeedsOne) {
  expect_equal_outcomes("def forward(self, x):\n  return torch.tanh(x @ self.weight)\n", false);
}

TEST(RecomputeTest, KeepsOnlyTheArguments) {
  const Module module = module_of(
      "def forward(self, x):\n"
      "  for i in range(10):\n"
      "    x = torch.tanh(x @ self.weight)\n"
      "  return x\n");
  Counter counter;
  const at::Tensor x = at::randn({8, 4}).requires_grad_();
  const std::vector<c10::IValue> arguments{x};
  const at::Tensor result =
      call_recomputed(module._ivalue(), script_body(module.type()->getMethod("forward"), "Net"), arguments,
                      counter)
          .toTensor();
  EXPECT_EQ(result.grad_fn()->num_inputs(), 1u);
  // There is one node between the result and the argument.
  EXPECT_EQ(result.grad_fn()->next_edge(0).function, torch::autograd::impl::grad_accumulator(x));
}

TEST(RecomputeTest, ABodyThatChangesItsArgumentIsRefused) {
  const Module module = module_of("def forward(self, x):\n  x.mul_(2.0)\n  return x @ self.weight\n");
  Counter counter;
  const std::vector<c10::IValue> arguments{at::randn({8, 4})};
  try {
    call_recomputed(module._ivalue(), script_body(module.type()->getMethod("forward"), "Net"), arguments,
                    counter);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("'layers.0' changes one of its arguments in place"), std::string::npos);
  }
}

/// The device of the module counts, not that of the arguments: here a device without random numbers.
TEST(RecomputeTest, TheDeviceIsAskedOfTheHooks) {
  const Module module = module_of("def forward(self, x):\n  return x @ self.weight\n");
  Counter counter;
  counter.computes_on = at::kMeta;
  const std::vector<c10::IValue> arguments{at::randn({8, 4})};
  EXPECT_THROW(call_recomputed(module._ivalue(), script_body(module.type()->getMethod("forward"), "Net"),
                               arguments, counter),
               c10::Error);
}

TEST(MapTensorsTest, KeepsTheStructure) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
  dict.insert("k", at::full({1}, 5.0));
  const c10::IValue value = c10::ivalue::Tuple::create(
      {at::full({1}, 1.0), c10::List<at::Tensor>({at::full({1}, 2.0), at::full({1}, 3.0)}), dict, 7,
       c10::IValue()});
  const c10::IValue doubled = map_tensors(value, [](const at::Tensor& tensor) { return tensor * 2; });
  const std::vector<c10::IValue> elements = doubled.toTupleRef().elements().vec();
  ASSERT_EQ(elements.size(), 5u);
  EXPECT_EQ(elements[0].toTensor().item<double>(), 2);
  EXPECT_EQ(elements[1].toTensorVector().at(1).item<double>(), 6);
  EXPECT_EQ(elements[2].toGenericDict().at("k").toTensor().item<double>(), 10);
  EXPECT_EQ(elements[3].toInt(), 7);
  EXPECT_TRUE(elements[4].isNone());
}

/// Backward is outside the autocast scope, as in Python, and may run on another thread.
TEST(RecomputeTest, TheSecondRunIsUnderTheAutocastOfTheFirst) {
  use_simple_executor();
  const auto gradient = [](bool recompute, bool autocast) {
    const Module module = module_of("def forward(self, x):\n  return torch.tanh(x @ self.weight)\n");
    at::manual_seed(11);
    const at::Tensor x = at::randn({8, 4}).set_requires_grad(true);
    Counter counter;  // Must live until the end of backward.
    c10::IValue result;
    {
      const AutocastScope scope({at::kCPU, autocast, at::kBFloat16});
      const std::vector<c10::IValue> arguments{x};
      result = recompute ? call_recomputed(module._ivalue(),
                                           script_body(module.type()->getMethod("forward"), "Net"), arguments,
                                           counter)
                         : module.get_method("forward")({x});
      EXPECT_EQ(result.toTensor().scalar_type(), autocast ? at::kBFloat16 : at::kFloat);
    }
    result.toTensor().to(at::kFloat).square().sum().backward();
    return module.attr("weight").toTensor().grad();
  };
  EXPECT_TRUE(gradient(true, true).equal(gradient(false, true)));
  EXPECT_TRUE(gradient(true, false).equal(gradient(false, false)));
  EXPECT_FALSE(gradient(true, true).equal(gradient(true, false)));
}

}  // namespace
}  // namespace accel::train
