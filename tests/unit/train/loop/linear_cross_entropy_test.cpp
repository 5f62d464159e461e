#include "train/loop/linear_cross_entropy.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <exception>
#include <string>
#include <vector>

#include "ranks_as_threads.hpp"
#include "tensor_counter.hpp"
#include "test_port.hpp"
#include "train/loop/cross_entropy.hpp"

namespace accel::train {
namespace {

constexpr std::int64_t kRows = 61;
constexpr std::int64_t kWidth = 5;
constexpr std::int64_t kClasses = 18;
constexpr int kRanks = 3;
/// Seven rows, so that there are several chunks and a rest.
constexpr std::int64_t kChunk = 7 * kClasses * 4;

struct Case {
  std::string name;
  bool has_bias = true;
  bool has_ignored = true;
  bool has_weights = false;
  double label_smoothing = 0;
  double z_loss = 0;
};

struct Head {
  LinearHead head;
  HeadTargets targets;

  explicit Head(const Case& tested, at::ScalarType dtype = at::kDouble) {
    at::manual_seed(5);
    const auto random = [&](at::IntArrayRef shape) {
      return at::randn(shape, at::kDouble).to(dtype).set_requires_grad(true);
    };
    head = {random({kRows, kWidth}), random({kClasses, kWidth}),
            tested.has_bias ? random({kClasses}) : at::Tensor()};
    targets.classes = at::randint(kClasses, {kRows}, at::kLong);
    if (tested.has_ignored) targets.classes.slice(0, 2, kRows, 3).fill_(kIgnoredTarget);
    targets.counted = counted_targets(targets.classes).sum().item<std::int64_t>();
    const at::ScalarType loss_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
    if (tested.has_weights) targets.class_weights = at::rand({kClasses}, loss_dtype) + 0.5;
    targets.label_smoothing = tested.label_smoothing;
    targets.z_loss = tested.z_loss;
  }

  [[nodiscard]] std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> leaves = {head.hidden, head.weight};
    if (head.bias.defined()) leaves.push_back(head.bias);
    return leaves;
  }

  /// torch's own loss of the whole logits.
  [[nodiscard]] at::Tensor of_torch() const {
    const at::Tensor logits = at::linear(head.hidden, head.weight, head.bias);
    const at::Tensor values = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
    const at::Tensor loss = at::cross_entropy_loss(values, targets.classes, targets.class_weights,
                                                   at::Reduction::Mean, -100, targets.label_smoothing);
    const at::Tensor counted = targets.classes.ne(-100);
    return loss + values.logsumexp(1).masked_select(counted).square().mean() * targets.z_loss;
  }
};

std::vector<at::Tensor> gradients_of(const Head& head, const at::Tensor& loss) {
  (loss * 3).backward();
  std::vector<at::Tensor> gradients;
  for (at::Tensor leaf : head.leaves()) {
    gradients.push_back(leaf.grad().clone());
    leaf.mutable_grad().reset();
  }
  return gradients;
}

class LinearCrossEntropyTest : public ::testing::TestWithParam<Case> {};

TEST_P(LinearCrossEntropyTest, LossAndGradientsAreTorchs) {
  const Head head(GetParam());
  const at::Tensor expected = head.of_torch();
  const std::vector<at::Tensor> theirs = gradients_of(head, expected);
  for (const std::int64_t chunk : {kChunk, kHeadChunkBytes}) {
    const at::Tensor loss = linear_cross_entropy(head.head, head.targets, chunk).loss;
    EXPECT_EQ(loss.scalar_type(), at::kDouble);
    EXPECT_TRUE(at::allclose(loss, expected, 1e-12, 1e-12)) << loss << expected;
    const std::vector<at::Tensor> ours = gradients_of(head, loss);
    for (std::size_t i = 0; i < theirs.size(); ++i)
      EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-10, 1e-12)) << i << (ours[i] - theirs[i]).abs().max();
  }
}

TEST_P(LinearCrossEntropyTest, WithoutGradRightLabelsAreCounted) {
  const Head head(GetParam());
  const at::NoGradGuard no_grad;
  const HeadLoss result = linear_cross_entropy(head.head, head.targets, kChunk);
  EXPECT_TRUE(at::allclose(result.loss, head.of_torch(), 1e-12, 1e-12));
  const at::Tensor classes = at::linear(head.head.hidden, head.head.weight, head.head.bias).argmax(1);
  EXPECT_EQ(result.right.item<std::int64_t>(), classes.eq(head.targets.classes).sum().item<std::int64_t>());
}

TEST_P(LinearCrossEntropyTest, OfSixteenBitsItIsAsNearAsTorch) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Head head(GetParam(), dtype);
    Head exact = head;
    for (at::Tensor* tensor : {&exact.head.hidden, &exact.head.weight, &exact.head.bias}) {
      if (tensor->defined()) *tensor = tensor->detach().to(at::kDouble).set_requires_grad(true);
    }
    if (exact.targets.class_weights.defined())
      exact.targets.class_weights = exact.targets.class_weights.to(at::kDouble);
    const std::vector<at::Tensor> theirs = gradients_of(exact, exact.of_torch());
    const HeadLoss result = linear_cross_entropy(head.head, head.targets, kChunk);
    EXPECT_EQ(result.loss.scalar_type(), at::kFloat);
    const std::vector<at::Tensor> ours = gradients_of(head, result.loss);
    // The logits, their gradient, the product and its multiple are rounded, and the logits' error passes
    // through the softmax, whose derivative is at most 1.
    const double epsilon = dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      EXPECT_EQ(ours[i].scalar_type(), dtype);
      const double largest = theirs[i].abs().max().item<double>();
      EXPECT_TRUE(at::allclose(ours[i].to(at::kDouble), theirs[i], 4 * epsilon, 8 * epsilon * largest)) << i;
    }
  }
}

TEST_P(LinearCrossEntropyTest, WhatIsFrozenGetsNoGradient) {
  const Head head(GetParam());
  const std::vector<at::Tensor> theirs = gradients_of(head, head.of_torch());
  LinearHead frozen = head.head;
  frozen.weight = frozen.weight.detach();
  if (frozen.bias.defined()) frozen.bias = frozen.bias.detach();
  linear_cross_entropy(frozen, head.targets, kChunk).loss.mul(3).backward();
  EXPECT_TRUE(at::allclose(head.head.hidden.grad(), theirs[0], 1e-10, 1e-12));
  EXPECT_FALSE(head.head.weight.grad().defined());
}

at::Tensor own_part(const at::Tensor& whole, const Group& ranks) {
  return whole.detach().chunk(kRanks)[static_cast<std::size_t>(ranks.rank())].clone().set_requires_grad(true);
}

TEST_P(LinearCrossEntropyTest, RanksWithAPartOfTheClassesGetLossAndGradientsOfAll) {
  const Head head(GetParam());
  const at::Tensor expected = head.of_torch();
  const std::vector<at::Tensor> theirs = gradients_of(head, expected);
  const at::Tensor best = at::linear(head.head.hidden, head.head.weight, head.head.bias).argmax(1);
  const auto right = best.eq(head.targets.classes).sum().item<std::int64_t>();
  testing::on_ranks(kRanks, kRanks, testing::test_port(), [&](Group& ranks) {
    // Hidden states of a convolution have the numbers of a column side by side.
    const at::Tensor hidden = head.head.hidden.detach().t().contiguous().t();
    const LinearHead own = {hidden.set_requires_grad(true), own_part(head.head.weight, ranks),
                            head.head.bias.defined() ? own_part(head.head.bias, ranks) : at::Tensor(),
                            &ranks};
    const at::Tensor loss = linear_cross_entropy(own, head.targets, kChunk).loss;
    EXPECT_TRUE(at::allclose(loss, expected, 1e-12, 1e-12)) << loss << expected;
    (loss * 3).backward();
    EXPECT_TRUE(at::allclose(own.hidden.grad(), theirs[0], 1e-10, 1e-12));
    EXPECT_TRUE(at::allclose(own.weight.grad(), own_part(theirs[1], ranks), 1e-10, 1e-12));
    if (own.bias.defined()) {
      EXPECT_TRUE(at::allclose(own.bias.grad(), own_part(theirs[2], ranks), 1e-10, 1e-12));
    }
    const at::Tensor shared = at::cat({loss.detach().view(1), own.hidden.grad().reshape({-1})});
    const at::Tensor all = at::empty({kRanks * shared.numel()}, shared.options());
    ranks.all_gather(all, shared).wait();
    for (const at::Tensor& other : all.chunk(kRanks)) EXPECT_TRUE(other.equal(shared));
    const at::NoGradGuard no_grad;
    EXPECT_EQ(linear_cross_entropy(own, head.targets, kChunk).right.item<std::int64_t>(), right);
  });
}

INSTANTIATE_TEST_SUITE_P(
    , LinearCrossEntropyTest,
    ::testing::Values(Case{.name = "Plain"}, Case{.name = "NoBias", .has_bias = false},
                      Case{.name = "AllCount", .has_ignored = false},
                      Case{.name = "Smoothing", .label_smoothing = 0.2},
                      Case{.name = "Weights", .has_weights = true}, Case{.name = "ZLoss", .z_loss = 0.3},
                      Case{.name = "Everything", .has_weights = true, .label_smoothing = 0.1, .z_loss = 0.2}),
    [](const auto& tested) { return tested.param.name; });

TEST(LinearCrossEntropyAutocastTest, TheProductsAreInItsDtypeAndTheGradientsInTheParameters) {
  const Head head({.name = "", .label_smoothing = 0.1}, at::kFloat);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor loss = linear_cross_entropy(head.head, head.targets, kChunk).loss;
  const at::Tensor expected = head.of_torch();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  // The logits are the same bits, unless a product of fewer rows adds in another order.
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-3);
  const std::vector<at::Tensor> theirs = gradients_of(head, expected);
  const std::vector<at::Tensor> ours = gradients_of(head, loss);
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    EXPECT_EQ(ours[i].scalar_type(), at::kFloat);
    const double largest = theirs[i].abs().max().item<double>();
    EXPECT_TRUE(at::allclose(ours[i], theirs[i], 0, 0x1p-5 * largest)) << i;
  }
}

TEST(LinearCrossEntropySmallProbabilitiesTest, TheirGradientsAreNotLostInFloat16) {
  // The right class has the logit 0, and each of the others has exp(-18.5), less than half of the smallest
  // number of float16. Their sum is 1e-5.
  constexpr std::int64_t kOthers = 1000;
  at::Tensor weight = at::tensor({-4.0, 1.0}, at::kDouble).repeat({kOthers + 1, 1});
  weight.select(0, 0).zero_();
  const at::Tensor hidden = at::tensor({4.625, 0.0}, at::kDouble).unsqueeze(0);
  const at::Tensor exact = hidden.clone().set_requires_grad(true);
  const at::Tensor target = at::zeros({1}, at::kLong);
  at::cross_entropy_loss(at::linear(exact, weight), target).mul(65536).backward();
  const at::Tensor narrow = hidden.to(at::kHalf).set_requires_grad(true);
  const HeadTargets targets{.classes = target, .counted = 1};
  linear_cross_entropy({narrow, weight.to(at::kHalf), {}}, targets, kChunk).loss.mul(65536).backward();
  EXPECT_TRUE(at::allclose(narrow.grad().to(at::kDouble), exact.grad(), 0x1p-7, 0))
      << narrow.grad() << exact.grad();
}

TEST(LinearCrossEntropyWithoutLabelsTest, TheGradientsAreZero) {
  Head head({.name = "", .z_loss = 0.1});
  head.targets.classes.fill_(kIgnoredTarget);
  head.targets.counted = 0;
  const at::Tensor loss = linear_cross_entropy(head.head, head.targets, kChunk).loss;
  EXPECT_TRUE(std::isnan(loss.item<double>()));
  for (const at::Tensor& gradient : gradients_of(head, loss))
    EXPECT_EQ(gradient.abs().max().item<double>(), 0);
}

TEST(LinearCrossEntropyWrongLabelTest, OnRanksWithPartsItIsNotTakenForAnothersClass) {
  HeadTargets targets{.classes = at::full({1}, kClasses, at::kLong), .counted = 1};
  const auto failures = testing::failures_of_ranks(kRanks, kRanks, testing::test_port(), [&](Group& ranks) {
    linear_cross_entropy({at::ones({1, kWidth}), at::zeros({kClasses / kRanks, kWidth}), {}, &ranks}, targets,
                         kChunk);
  });
  for (const std::exception_ptr& failure : failures) EXPECT_TRUE(failure != nullptr);
}

TEST(LinearCrossEntropyRightLabelsTest, OfEqualLogitsTheFirstCountsOnAllRanks) {
  HeadTargets targets{.classes = at::tensor(std::vector<std::int64_t>{0, kClasses - 1, 0, 1}), .counted = 4};
  testing::on_ranks(kRanks, kRanks, testing::test_port(), [&](Group& ranks) {
    const at::NoGradGuard no_grad;
    const LinearHead own = {at::ones({4, kWidth}), at::zeros({kClasses / kRanks, kWidth}), {}, &ranks};
    EXPECT_EQ(linear_cross_entropy(own, targets, kChunk).right.item<std::int64_t>(), 2);
  });
}

TEST(LinearCrossEntropyMemoryTest, TheLogitsNeverExistAsAWhole) {
  constexpr std::int64_t kMany = 4096;
  const at::Tensor hidden = at::randn({kMany, 8}).requires_grad_(true);
  const at::Tensor weight = at::randn({kMany, 8}).requires_grad_(true);
  const HeadTargets targets{.classes = at::randint(kMany, {kMany}, at::kLong), .counted = kMany};
  constexpr std::int64_t kLogits = kMany * kMany * 4;
  constexpr std::int64_t kPart = kLogits / 16;
  const testing::TensorCounter counter;
  linear_cross_entropy({hidden, weight, {}}, targets, kPart).loss.backward();
  // The logits of a chunk, the logarithms of their probabilities, and what is as small as the weight.
  EXPECT_LT(counter.peak(), 3 * kPart);
  EXPECT_GT(counter.peak(), kPart);
}

}  // namespace
}  // namespace accel::train
