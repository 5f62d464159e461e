#include "ckpt/store/accelerate_names.hpp"

#include <gtest/gtest.h>

namespace accel::ckpt {
namespace {

TEST(AccelerateNamesTest, OnlyADirectoryNamesTheFirstModelByItsIndex) {
  EXPECT_EQ(file_stem(kModelStem, 0), "pytorch_model_fsdp");
  EXPECT_EQ(file_stem(kOptimizerStem, 1), "optimizer_1");
  EXPECT_EQ(sharded_directory(kModelStem, 0), "pytorch_model_fsdp_0");
  EXPECT_EQ(sharded_directory(kOptimizerStem, 1), "optimizer_1");
}

}  // namespace
}  // namespace accel::ckpt
