#include "train/graph/run/random_state.hpp"

#include <gtest/gtest.h>

namespace accel::train {
namespace {

TEST(RandomStateTest, AStateHasTheNameOfItsTypeOfDevice) {
  EXPECT_EQ(random_state_name({at::DeviceType::CUDA, 3}), "cuda");
  EXPECT_EQ(random_state_name({at::DeviceType::XPU, 0}), "xpu");
  const at::Device device(at::DeviceType::HPU, 1);
  EXPECT_EQ(RandomState::from({}, device, at::Tensor()).gpu_device(), std::nullopt);
  EXPECT_EQ(RandomState::from({}, device, at::ones({1}, at::kByte)).gpu_device(), device);
}

}  // namespace
}  // namespace accel::train
