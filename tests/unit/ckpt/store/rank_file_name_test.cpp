#include "ckpt/store/rank_file_name.hpp"

#include <gtest/gtest.h>

namespace accel::ckpt {
namespace {

TEST(RankFileNameTest, HasARankAndWhatStandsAroundIt) {
  struct Row {
    const char* name;
    const char* before;
    int rank;
    const char* after;
  };
  const Row rows[] = {
      {"optimizer_0_rank12.bin", "optimizer_0_rank", 12, ".bin"},
      {"pytorch_model_fsdp_rank0.bin", "pytorch_model_fsdp_rank", 0, ".bin"},
      {"model_world_size_4_rank_3.pt", "model_world_size_4_rank_", 3, ".pt"},
      {"rank-7.pth", "rank-", 7, ".pth"},
      {"rank_0_of_8.pt", "rank_", 0, "_of_8.pt"},
      {"rank_model_rank_2.pt", "rank_model_rank_", 2, ".pt"},
      {"weights.rank1.shard.pt", "weights.rank", 1, ".shard.pt"},
  };
  for (const Row& row : rows) {
    const auto name = parse_rank_file_name(row.name);
    ASSERT_TRUE(name.has_value()) << row.name;
    EXPECT_EQ(name->before, row.before);
    EXPECT_EQ(name->rank, row.rank);
    EXPECT_EQ(name->after, row.after);
    EXPECT_EQ(name->of(name->rank), row.name);
  }
  EXPECT_EQ(parse_rank_file_name("rank0.pt")->of(11), "rank11.pt");
}

TEST(RankFileNameTest, IsNotEveryNameWithTheWord) {
  for (const char* name :
       {"pytorch_model_fsdp.bin", "optimizer_rank.bin", "optimizer_rank-.bin", "frank0.pt", "rank0",
        "rank0.json", "optimizer_rank0x.bin", "optimizer_rank99999999999.bin", "ranks_2.pt"}) {
    EXPECT_FALSE(parse_rank_file_name(name).has_value()) << name;
  }
}

TEST(RankFileNameTest, KnowsThoseOfAccelerate) {
  EXPECT_TRUE(parse_rank_file_name("optimizer_0_rank12.bin")->is_accelerates());
  EXPECT_TRUE(parse_rank_file_name("pytorch_model_fsdp_rank0.bin")->is_accelerates());
  for (const char* name :
       {"x_rank0.bin", "optimizer_rank0.pt", "pytorch_model_fsdp_rank_0.bin", "optimizer_rank-1.bin"})
    EXPECT_FALSE(parse_rank_file_name(name)->is_accelerates()) << name;
}

}  // namespace
}  // namespace accel::ckpt
