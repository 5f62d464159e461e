#include "ckpt/checkpoint_search.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

class CheckpointSearchTest : public ::testing::Test {
 protected:
  std::filesystem::path put(const std::string& name) {
    std::filesystem::create_directories((dir_ / name).parent_path());
    write_file(dir_ / name, "");
    return dir_ / name;
  }
  std::string found(Want want) {
    return find_checkpoint(dir_.path(), want).lexically_relative(dir_.path()).string();
  }
  std::string rejection(ErrorKind kind, Want want = Want::kModel) {
    return error_of(kind, [&] { (void)find_checkpoint(dir_.path(), want); });
  }
  TempDir dir_;
};

TEST_F(CheckpointSearchTest, TheDirectoryItself) {
  put(".metadata");
  EXPECT_EQ(found(Want::kModel), ".");
}

TEST_F(CheckpointSearchTest, TheOneBelow) {
  put("checkpoints/checkpoint_3/pytorch_model_fsdp_0/.metadata");
  EXPECT_EQ(found(Want::kModel), "checkpoints/checkpoint_3/pytorch_model_fsdp_0");
  put("checkpoints/1/2/3/too_deep/.metadata");
  EXPECT_EQ(found(Want::kModel), "checkpoints/checkpoint_3/pytorch_model_fsdp_0");
}

TEST_F(CheckpointSearchTest, ModelAndOptimizerOfEveryForm) {
  put("sharded/pytorch_model_fsdp_0/.metadata");
  put("sharded/optimizer_0/.metadata");
  put("full/pytorch_model_fsdp.bin");
  put("full/optimizer.bin");
  put("full/scheduler.bin");
  put("full/sampler.bin");
  put("local/pytorch_model_fsdp_rank1.bin");
  put("local/pytorch_model_fsdp_rank0.bin");
  put("local/optimizer_0/.metadata");
  const auto in = [&](const char* name, Want want) {
    return find_checkpoint(dir_ / name, want).lexically_relative(dir_.path()).string();
  };
  EXPECT_EQ(in("sharded", Want::kModel), "sharded/pytorch_model_fsdp_0");
  EXPECT_EQ(in("sharded", Want::kOptimizer), "sharded/optimizer_0");
  EXPECT_EQ(in("full", Want::kModel), "full/pytorch_model_fsdp.bin");
  EXPECT_EQ(in("full", Want::kOptimizer), "full/optimizer.bin");
  EXPECT_EQ(in("local", Want::kModel), "local/pytorch_model_fsdp_rank0.bin");
  EXPECT_EQ(in("local", Want::kOptimizer), "local/optimizer_0");
  EXPECT_THAT(rejection(ErrorKind::kUsage), HasSubstr("holds 3 checkpoints"));
  EXPECT_THAT(rejection(ErrorKind::kUsage, Want::kAny), HasSubstr("holds 6 checkpoints"));
}

TEST_F(CheckpointSearchTest, AnOptimizerAloneIsTakenForTheModel) {
  put("optimizer_0/.metadata");
  EXPECT_EQ(found(Want::kModel), "optimizer_0");
  EXPECT_EQ(found(Want::kAny), "optimizer_0");
}

TEST_F(CheckpointSearchTest, SafetensorsGoBeforeTheSameInBin) {
  put("pytorch_model.bin");
  EXPECT_EQ(found(Want::kModel), "pytorch_model.bin");
  put("model.safetensors");
  EXPECT_EQ(found(Want::kModel), "model.safetensors");
}

TEST_F(CheckpointSearchTest, AFinishedModelGoesBeforeItsCheckpoints) {
  put("checkpoint_1/pytorch_model_fsdp_0/.metadata");
  put("model.safetensors");
  EXPECT_EQ(found(Want::kModel), "model.safetensors");
}

TEST_F(CheckpointSearchTest, SeveralAreNamed) {
  put("b/.metadata");
  put("a/.metadata");
  EXPECT_THAT(rejection(ErrorKind::kUsage), AllOf(HasSubstr("holds 2"), HasSubstr("/a, "), HasSubstr("/b")));
  EXPECT_THAT(list_checkpoints(dir_.path()), ElementsAre(dir_ / "a", dir_ / "b"));
}

TEST_F(CheckpointSearchTest, LeftOversAreNeverEntered) {
  put("checkpoint_2.incomplete/pytorch_model_fsdp_0/.metadata");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("checkpoint_2.incomplete' is left over"));
  put("checkpoint_1.deleting/pytorch_model_fsdp_0/.metadata");
  put("checkpoint_0/pytorch_model_fsdp_0/.metadata");
  EXPECT_EQ(found(Want::kModel), "checkpoint_0/pytorch_model_fsdp_0");
}

TEST_F(CheckpointSearchTest, SaysWhatIsThereInstead) {
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("holds no checkpoint of a model"));
  put("x/__0_0.distcp");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("no .metadata"));
  EXPECT_THAT(rejection(ErrorKind::kMissing, Want::kOptimizer), HasSubstr("no .metadata"));
}

}  // namespace
}  // namespace accel::ckpt
