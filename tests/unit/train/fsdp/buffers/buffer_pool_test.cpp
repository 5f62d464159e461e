#include "train/fsdp/buffers/buffer_pool.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>

namespace accel::train {
namespace {

TEST(BufferPoolTest, BlocksOfOneSizeAreUsedAgain) {
  const auto pool = BufferPool::make(at::kCPU);
  const void* first = nullptr;
  {
    const at::Tensor tensor = pool->empty(100, at::kFloat).fill_(5);
    first = tensor.data_ptr();
    EXPECT_NE(pool->empty(100, at::kFloat).data_ptr(), first);
  }
  EXPECT_EQ(pool->held_bytes(), 800);
  const at::Tensor one = pool->empty(200, at::kHalf);
  const at::Tensor other = pool->empty(100, at::kFloat);
  EXPECT_TRUE(one.data_ptr() == first || other.data_ptr() == first);
  EXPECT_EQ(pool->held_bytes(), 800);
  EXPECT_EQ(pool->empty(7, at::kFloat).numel(), 7);
  EXPECT_EQ(pool->held_bytes(), 828);
}

TEST(BufferPoolTest, PoisonIsNaNInEveryType) {
  const auto pool = BufferPool::make(at::kCPU, /*poison=*/true);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const float* data = nullptr;
    {
      const at::Tensor tensor = pool->empty(64, dtype);
      EXPECT_TRUE(tensor.isnan().all().item<bool>()) << dtype;
      tensor.fill_(1);
      data = static_cast<const float*>(tensor.data_ptr());
    }
    // Given back, but still counted by the pool.
    float value = 0;
    std::memcpy(&value, data, sizeof value);
    EXPECT_NE(value, value) << dtype;
    EXPECT_TRUE(pool->empty(64, dtype).isnan().all().item<bool>()) << dtype;
  }
  EXPECT_EQ(pool->empty(0, at::kFloat).numel(), 0);
}

}  // namespace
}  // namespace accel::train
