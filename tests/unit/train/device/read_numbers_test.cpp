#include "train/device/read_numbers.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::train {
namespace {

using ::testing::ElementsAre;

at::Tensor number(double value, at::ScalarType dtype = at::kDouble) {
  return at::scalar_tensor(value, at::TensorOptions().dtype(dtype));
}

TEST(ReadNumbersTest, KeepsTheirOrderWhateverTheirDtypes) {
  const std::vector<at::Tensor> numbers = {number(0.1), number(3, at::kLong), number(0.5, at::kHalf),
                                           number(0.1, at::kFloat)};
  EXPECT_THAT(read_numbers(numbers), ElementsAre(0.1, 3.0, 0.5, static_cast<double>(0.1F)));
  EXPECT_TRUE(read_numbers({}).empty());
}

TEST(ReadNumbersTest, OfALossWithAHistoryToo) {
  const std::vector<at::Tensor> numbers = {at::ones({3}).set_requires_grad(true).sum()};
  EXPECT_THAT(read_numbers(numbers), ElementsAre(3.0));
}

// Offloaded parameters are on the host, and replicated parameters are not.
TEST(ReadNumbersTest, NumbersOfTwoDevicesAreTwoReads) {
  const at::Tensor elsewhere = at::empty({}, at::TensorOptions().device(at::kMeta));
  const std::vector<NumbersOfDevice> devices =
      by_device(std::vector<at::Tensor>{number(1), elsewhere, number(2), elsewhere});
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_THAT(devices[0].places, ElementsAre(0, 2));
  EXPECT_TRUE(devices[0].values.equal(at::tensor({1.0, 2.0}, at::kDouble)));
  EXPECT_THAT(devices[1].places, ElementsAre(1, 3));
  EXPECT_TRUE(devices[1].values.is_meta());
  EXPECT_EQ(devices[1].values.sizes(), at::IntArrayRef({2}));
}

}  // namespace
}  // namespace accel::train
