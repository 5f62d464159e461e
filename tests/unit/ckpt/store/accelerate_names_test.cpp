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

TEST(RankFileNameTest, HasAStemAndARank) {
  EXPECT_EQ(parse_rank_file_name("optimizer_0_rank12.bin")->stem, "optimizer_0");
  EXPECT_EQ(parse_rank_file_name("optimizer_0_rank12.bin")->rank, 12);
  EXPECT_EQ(parse_rank_file_name("pytorch_model_fsdp_rank0.bin")->stem, "pytorch_model_fsdp");
  for (const char* name :
       {"pytorch_model_fsdp.bin", "optimizer_rank.bin", "optimizer_rank-1.bin", "x_rank0.bin",
        "optimizer_rank0.pt", "optimizer_rank0x.bin", "optimizer_rank99999999999.bin"}) {
    EXPECT_FALSE(parse_rank_file_name(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace accel::ckpt
