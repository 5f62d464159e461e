#include "train/loop/cross_entropy.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "tensor_counter.hpp"

namespace accel::train {
namespace {

struct Case {
  const char* name;
  std::int64_t rows;
  std::int64_t classes;
  at::ScalarType dtype = at::kFloat;
};

class CrossEntropyTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    at::manual_seed(3);
    const auto [name, rows, classes, dtype] = GetParam();
    logits_ = (4 * at::randn({rows, classes})).to(dtype);
    targets_ = at::randint(classes, {rows}, at::kLong);
    for (std::int64_t row = 1; row < rows; row += 5) targets_[row] = -100;
  }

  at::Tensor logits_;
  at::Tensor targets_;
};

TEST_P(CrossEntropyTest, LossAndGradientAreTorchsBitForBit) {
  const at::Tensor ours = logits_.clone().requires_grad_(true);
  const at::Tensor theirs = logits_.clone().requires_grad_(true);
  const at::Tensor loss = cross_entropy(ours, targets_);
  const bool is_half = logits_.element_size() == 2;
  const at::Tensor expected = at::cross_entropy_loss(is_half ? theirs.to(at::kFloat) : theirs, targets_);
  (loss / 3).backward();
  (expected / 3).backward();
  EXPECT_EQ(loss.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(loss.equal(expected)) << loss << expected;
  EXPECT_EQ(ours.grad().scalar_type(), GetParam().dtype);
  EXPECT_TRUE(ours.grad().equal(theirs.grad())) << (ours.grad() - theirs.grad()).abs().max();
  const at::NoGradGuard without;
  EXPECT_TRUE(cross_entropy(logits_, targets_).equal(expected));
}

TEST(CountedTargetsTest, AnyTypeOfIntegerIsComparedAsInt64) {
  for (const at::ScalarType dtype : {at::kByte, at::kChar, at::kInt, at::kLong}) {
    const at::Tensor targets = at::tensor({-100, 100, 0}, at::kLong).to(dtype);
    const bool is_unsigned = dtype == at::kByte;  // It has 156 instead, which is a class.
    EXPECT_EQ(counted_targets(targets).sum().item<std::int64_t>(), is_unsigned ? 3 : 2) << dtype;
  }
}

TEST(CrossEntropyWithoutLabelsTest, TheGradientIsZero) {
  const at::Tensor logits = at::randn({3, 5}).requires_grad_(true);
  const at::Tensor loss = cross_entropy(logits, at::full({3}, -100, at::kLong));
  EXPECT_TRUE(at::isnan(loss).item<bool>());
  loss.backward();
  EXPECT_TRUE(logits.grad().equal(at::zeros({3, 5}))) << logits.grad();
}

INSTANTIATE_TEST_SUITE_P(
    , CrossEntropyTest,
    ::testing::Values(Case{"OneRow", 1, 7}, Case{"OneClass", 5, 1}, Case{"ManyChunksAndARest", 301, 1003},
                      Case{"ARowLargerThanAChunk", 3, 300'000}, Case{"BFloat16", 203, 1003, at::kBFloat16},
                      Case{"Half", 203, 1003, at::kHalf}, Case{"Double", 77, 1003, at::kDouble}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(CrossEntropyMemoryTest, NothingButTheGradientIsAsLargeAsTheLogits) {
  constexpr std::int64_t kRows = 2048;
  constexpr std::int64_t kClasses = 4096;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor logits = at::randn({kRows, kClasses}).to(dtype).requires_grad_(true);
    const at::Tensor targets = at::randint(kClasses, {kRows}, at::kLong);
    const testing::TensorCounter counter;
    cross_entropy(logits, targets).backward();
    const auto bytes = static_cast<std::int64_t>(logits.nbytes());
    EXPECT_GE(counter.peak(), bytes);  // The gradient itself is counted.
    EXPECT_LT(counter.peak(), bytes + bytes / 8 * at::get_num_threads());
  }
}

TEST(CrossEntropyErrorTest, ATargetThatIsNoClassIsNamed) {
  for (const std::int64_t wrong : {std::int64_t{5}, std::int64_t{-1}}) {
    try {
      cross_entropy(at::zeros({3, 5}), at::tensor({0, -100, static_cast<int>(wrong)}, at::kLong));
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(error.message().find("the target " + std::to_string(wrong)), std::string::npos)
          << error.message();
      EXPECT_NE(error.message().find("model has 5"), std::string::npos) << error.message();
    }
  }
}

TEST(CrossEntropyErrorTest, WithoutATargetItIsNaNAsInTorch) {
  EXPECT_TRUE(cross_entropy(at::zeros({2, 5}), at::full({2}, -100, at::kLong)).isnan().item<bool>());
}

}  // namespace
}  // namespace accel::train
