#include "train/fsdp/call_outputs.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <vector>

#include "train/graph/tensors.hpp"

namespace accel::train {
namespace {

class CallOutputsTest : public testing::Test {
 protected:
  CallOutputsTest() {
    module_.register_attribute("last", at::TensorType::get(), at::zeros({}));
    outputs_ = std::make_unique<CallOutputs>(std::make_shared<ModuleState>(module_._ivalue()));
  }

  /// A tensor with history, as operators on what requires grad make it.
  static at::Tensor computed() { return at::ones({2}).requires_grad_().mul(2); }

  void expect(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
    EXPECT_EQ(found.size(), expected.size());
    EXPECT_TRUE(are_same(found, expected));
  }

  torch::jit::Module module_{"Layer"};
  std::unique_ptr<CallOutputs> outputs_;
};

TEST_F(CallOutputsTest, ResultsAreOutputsUnlessTheyAreUnchangedInputs) {
  const at::Tensor input = computed();
  const at::Tensor result = computed();
  const std::vector<c10::IValue> arguments{input};
  outputs_->begin(arguments, true);
  expect(outputs_->end(arguments, c10::ivalue::Tuple::create({input, result}), true), {result});
}

TEST_F(CallOutputsTest, AnInputChangedInPlaceIsAnOutput) {
  at::Tensor input = computed();
  const std::vector<c10::IValue> arguments{input};
  outputs_->begin(arguments, true);
  input.add_(1);
  expect(outputs_->end(arguments, c10::IValue(), true), {input});
}

TEST_F(CallOutputsTest, ATensorPutIntoAListOfTheArgumentsIsAnOutput) {
  const at::Tensor before = computed();
  const at::Tensor added = computed();
  c10::List<at::Tensor> list({before});
  const std::vector<c10::IValue> arguments{list};
  outputs_->begin(arguments, true);
  list.push_back(added);
  expect(outputs_->end(arguments, c10::IValue(), true), {added});
}

TEST_F(CallOutputsTest, ATensorPutIntoAnAttributeIsAnOutputOfTheOutermostCall) {
  const at::Tensor kept = computed();
  outputs_->begin({}, true);
  outputs_->begin({}, false);
  module_.setattr("last", kept);
  expect(outputs_->end({}, c10::IValue(), false), {});
  expect(outputs_->end({}, c10::IValue(), true), {kept});
  // It was there before the next call.
  outputs_->begin({}, true);
  expect(outputs_->end({}, c10::IValue(), true), {});
}

TEST_F(CallOutputsTest, AnInputPutIntoAnAttributeIsNoOutput) {
  const at::Tensor input = computed();
  const std::vector<c10::IValue> arguments{input};
  outputs_->begin(arguments, true);
  module_.setattr("last", input);
  expect(outputs_->end(arguments, c10::IValue(), true), {});
}

TEST_F(CallOutputsTest, LeavesInAttributesAreNoOutputs) {
  outputs_->begin({}, true);
  module_.setattr("last", at::ones({2}).requires_grad_());
  expect(outputs_->end({}, c10::IValue(), true), {});
}

TEST_F(CallOutputsTest, WithoutGradThereAreNoOutputs) {
  const at::NoGradGuard no_grad;
  outputs_->begin({}, true);
  expect(outputs_->end({}, at::ones({2}), true), {});
}

}  // namespace
}  // namespace accel::train
