#include "train/loop/loss.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace accel::train {
namespace {

Batch batch() {
  return {{{"input_ids", at::tensor({1, 2, 3, 4}, at::kLong).reshape({2, 2})},
           {"labels", at::tensor({2, -100, 0, 1}, at::kLong).reshape({2, 2})}}};
}

TEST(LossTest, CrossEntropyIsTheMeanOverTargetsThatCount) {
  const at::Tensor logits = at::zeros({2, 2, 3});
  logits.select(2, 2).fill_(std::log(2.0));  // Probabilities 1/4, 1/4, 1/2.
  const at::Tensor loss = loss_of({}, logits, batch());
  EXPECT_NEAR(loss.item<double>(), (std::log(2.0) + 2 * std::log(4.0)) / 3, 1e-6);
}

TEST(LossTest, PicksAnOutputOfATuple) {
  config::ModelConfig config;
  config.loss = "model";
  config.output = "1";
  const auto result = c10::ivalue::Tuple::create({at::zeros({2}), at::full({1}, 5.0)});
  EXPECT_DOUBLE_EQ(loss_of(config, result, batch()).item<double>(), 5);
  config.output = "2";
  EXPECT_THROW(loss_of(config, result, batch()), Error);
  config.output = "0";
  EXPECT_THROW(loss_of(config, result, batch()), Error);
}

TEST(LossTest, PicksAnOutputOfADict) {
  c10::Dict<std::string, at::Tensor> result;
  result.insert("logits", at::zeros({2, 2, 3}));
  result.insert("loss", at::full({}, 5.0));
  config::ModelConfig config;
  config.loss = "model";
  for (const char* output : {"loss", "1"}) {
    config.output = output;
    EXPECT_DOUBLE_EQ(loss_of(config, result, batch()).item<double>(), 5);
  }
  for (const char* output : {"hidden", "2", "-1", "logits"}) {
    config.output = output;
    EXPECT_THROW(loss_of(config, result, batch()), Error) << output;
  }
}

TEST(LossTest, AShapeThatDoesNotFitIsNamed) {
  try {
    loss_of({}, at::zeros({2, 3}), batch());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("targets of shape [2, 2]"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("[2, 3]"), std::string::npos) << error.message();
  }
  EXPECT_THROW(loss_of({}, at::zeros({}), batch()), Error);
  const Batch wide = {{{"labels", at::zeros({2, 3}, at::kLong)}}};
  EXPECT_THROW(loss_of({}, at::zeros({3, 2, 4}), wide), Error);  // The sequence first.
  EXPECT_NO_THROW(loss_of({}, at::zeros({2, 3, 4}), wide));
  EXPECT_NO_THROW(loss_of({}, at::zeros({6, 4}), wide));
  EXPECT_THROW(loss_of({}, c10::IValue("text"), batch()), Error);
}

TEST(LossTest, InputsInTheConfiguredOrder) {
  config::ModelConfig config;
  config.inputs = {"labels", "input_ids"};
  const Batch fields = batch();
  const auto inputs = inputs_of(config, fields);
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_TRUE(inputs[0].toTensor().is_same(fields.field("labels")));
  config.inputs = {"pixels"};
  EXPECT_THROW(inputs_of(config, fields), Error);
}

}  // namespace
}  // namespace accel::train
