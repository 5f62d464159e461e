#include "ckpt/read/search.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

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
    return find_checkpoint(dir_.path(), want).path.lexically_relative(dir_.path()).string();
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
    return find_checkpoint(dir_ / name, want).path.lexically_relative(dir_.path()).string();
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

TEST_F(CheckpointSearchTest, FoldersOfZeroAreRefusedByName) {
  put("latest");
  put("global_step2/mp_rank_00_model_states.pt");
  for (const char* rank : {"0", "1"})
    put(std::string("global_step2/zero_pp_rank_") + rank + "_mp_rank_00_optim_states.pt");
  const auto named = HasSubstr("global_step2' is a checkpoint of DeepSpeed's ZeRO");
  for (const Want want : {Want::kModel, Want::kOptimizer, Want::kAny})
    EXPECT_THAT(rejection(ErrorKind::kFailure, want), named);
  EXPECT_THAT(
      error_of(ErrorKind::kFailure, [&] { (void)find_checkpoint(dir_ / "global_step2", Want::kModel); }),
      named);
  // A finished model beside it is taken, and a model's file that is named.
  put("model.safetensors");
  EXPECT_EQ(found(Want::kModel), "model.safetensors");
  const auto file = dir_ / "global_step2/mp_rank_00_model_states.pt";
  EXPECT_EQ(find_checkpoint(file, Want::kModel).path, file);
}

TEST_F(CheckpointSearchTest, AnOptimizerNeverStandsForAModel) {
  put("optimizer_0/.metadata");
  put("scheduler.bin");
  EXPECT_THAT(rejection(ErrorKind::kMissing),
              AllOf(HasSubstr("holds no checkpoint of a model"), HasSubstr("optimizer_0'")));
  EXPECT_EQ(found(Want::kOptimizer), "optimizer_0");
  EXPECT_EQ(found(Want::kAny), "optimizer_0");
  EXPECT_EQ(find_checkpoint(dir_ / "optimizer_0", Want::kModel).path, dir_ / "optimizer_0");
}

TEST_F(CheckpointSearchTest, AModelMayHaveTheNameOfOtherState) {
  put("a/training_model/.metadata");
  put("a/._model.safetensors");
  put("a/training_args.bin");
  put("b/sampler_net.safetensors");
  put("b/sampler.bin");
  EXPECT_EQ(find_checkpoint(dir_ / "a", Want::kModel).path, dir_ / "a/training_model");
  EXPECT_EQ(find_checkpoint(dir_ / "b", Want::kModel).path, dir_ / "b/sampler_net.safetensors");
}

TEST_F(CheckpointSearchTest, WhatIsDamagedIsNamedWhateverLiesBesideIt) {
  put("checkpoint_4/pytorch_model_fsdp_0/.metadata");
  EXPECT_EQ(found(Want::kModel), "checkpoint_4/pytorch_model_fsdp_0");
  put("checkpoint_5/pytorch_model_fsdp_0/__0_0.distcp");
  put("checkpoint_5/optimizer_0/.metadata");
  EXPECT_THAT(rejection(ErrorKind::kMissing),
              AllOf(HasSubstr("checkpoint_5/pytorch_model_fsdp_0' has .distcp files but no .metadata"),
                    ::testing::Not(HasSubstr("checkpoint_4"))));
  EXPECT_EQ(found(Want::kOptimizer), "checkpoint_5/optimizer_0");
  EXPECT_THAT(list_checkpoints(dir_.path()).damaged, ::testing::SizeIs(1));
  put("checkpoint_5/pytorch_model_fsdp_0/.metadata");
  EXPECT_THAT(rejection(ErrorKind::kUsage), HasSubstr("holds 2 checkpoints"));
}

TEST_F(CheckpointSearchTest, AModelsDirectoryWithoutACheckpointIsDamaged) {
  put("optimizer_0/.metadata");
  std::filesystem::create_directory(dir_ / "pytorch_model_fsdp_0");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("pytorch_model_fsdp_0' holds no checkpoint"));
  EXPECT_THAT(rejection(ErrorKind::kMissing, Want::kAny),
              HasSubstr("pytorch_model_fsdp_0' holds no checkpoint"));
  EXPECT_EQ(found(Want::kOptimizer), "optimizer_0");
}

TEST_F(CheckpointSearchTest, ACheckpointThatHasLostItsModelIsDamaged) {
  put("checkpoint_4/pytorch_model_fsdp_0/.metadata");
  put("checkpoint_5/optimizer_0/.metadata");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("checkpoint_5' holds no checkpoint of a model"));
  EXPECT_EQ(list_checkpoints(dir_.path()).checkpoints.size(), 2);
}

TEST_F(CheckpointSearchTest, AnUnfinishedSaveIsNamedUnlessOneNamesTheOther) {
  put("checkpoint_4/pytorch_model_fsdp_0/.metadata");
  put("checkpoint_5.incomplete/pytorch_model_fsdp_0/.metadata");
  EXPECT_THAT(rejection(ErrorKind::kMissing),
              HasSubstr("checkpoint_5.incomplete' is a save that has not finished"));
  EXPECT_EQ(find_checkpoint(dir_ / "checkpoint_4", Want::kModel).path,
            dir_ / "checkpoint_4/pytorch_model_fsdp_0");
}

TEST_F(CheckpointSearchTest, AnUnfinishedSaveOfTheToolkitToo) {
  put("checkpoint_4/pytorch_model_fsdp_0/.metadata");
  std::filesystem::create_directory(dir_ / "merged.incomplete-0123abcd-12-0");  // Of a merge: no checkpoint.
  EXPECT_EQ(found(Want::kModel), "checkpoint_4/pytorch_model_fsdp_0");
  std::filesystem::create_directory(dir_ / "pytorch_model_fsdp_0.incomplete-0123abcd-12-0");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("is a save that has not finished"));
}

TEST_F(CheckpointSearchTest, SomeOfSeveralShardsAreNoModel) {
  put("a/model-00001-of-00002.safetensors");
  EXPECT_EQ(kind_of(dir_ / "a"), Kind::kSafetensorsSharded);
  put("b/pytorch_model-00002-of-00002.bin");
  EXPECT_THAT(rejection(ErrorKind::kMissing),
              HasSubstr("is part of a set without 'pytorch_model-00001-of-00002.bin'"));
}

TEST_F(CheckpointSearchTest, SafetensorsGoBeforeTheSameInBin) {
  put("pytorch_model.bin");
  EXPECT_EQ(found(Want::kModel), "pytorch_model.bin");
  put("model.safetensors");
  EXPECT_EQ(found(Want::kModel), "model.safetensors");
  EXPECT_THAT(find_checkpoint(dir_.path(), Want::kModel).passed_over,
              ElementsAre(dir_ / "pytorch_model.bin"));
}

TEST_F(CheckpointSearchTest, AFinishedModelGoesBeforeItsCheckpoints) {
  put("checkpoint_1/pytorch_model_fsdp_0/.metadata");
  put("model.safetensors");
  EXPECT_EQ(found(Want::kModel), "model.safetensors");
  EXPECT_THAT(find_checkpoint(dir_.path(), Want::kModel).passed_over,
              ElementsAre(dir_ / "checkpoint_1/pytorch_model_fsdp_0"));
  EXPECT_EQ(find_checkpoint(dir_.path() / "", Want::kModel).path, dir_ / "model.safetensors");
}

TEST_F(CheckpointSearchTest, WhatCannotBeOpenedIsDamaged) {
  put("checkpoint_4/pytorch_model_fsdp_0/.metadata");
  for (const char* name : {"checkpoint_5", "model.safetensors", "model.safetensors.index.json"}) {
    std::filesystem::create_symlink("nowhere", dir_ / name);
    EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr(std::string(name) + "' is a link to nothing"));
    std::filesystem::remove(dir_ / name);
  }
  ASSERT_EQ(::mkfifo((dir_ / "model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("model.safetensors' is not a regular file"));
}

TEST_F(CheckpointSearchTest, BesideSeveralFilesToo) {
  put("model-00001-of-00001.safetensors");
  put("model.safetensors.index.json");
  put("checkpoint_4/pytorch_model_fsdp_0/.metadata");
  EXPECT_EQ(find_checkpoint(dir_.path(), Want::kModel).path, dir_.path());
  EXPECT_THAT(find_checkpoint(dir_.path(), Want::kModel).passed_over,
              ElementsAre(dir_ / "checkpoint_4/pytorch_model_fsdp_0"));
  put("checkpoint_5.incomplete/pytorch_model_fsdp_0/.metadata");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("is a save that has not finished"));
}

TEST_F(CheckpointSearchTest, WhatLiesDeeperIsNotJudged) {
  put("model.safetensors");
  put("out/checkpoints/checkpoint_5/pytorch_model_fsdp_0/.metadata");
  EXPECT_EQ(found(Want::kModel), "model.safetensors");
}

TEST_F(CheckpointSearchTest, ADirectoryThatMustNotBeReadIsPassedOverUnlessItIsCalledACheckpoint) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads every directory";
  put("model.safetensors");
  for (const char* name : {"lost+found", "checkpoint_5"}) {
    std::filesystem::create_directory(dir_ / name);
    std::filesystem::permissions(dir_ / name, std::filesystem::perms::none);
  }
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("checkpoint_5' cannot be read"));
  std::filesystem::remove(dir_ / "checkpoint_5");
  EXPECT_EQ(found(Want::kModel), "model.safetensors");
}

TEST_F(CheckpointSearchTest, SeveralAreNamed) {
  put("b/.metadata");
  put("a/.metadata");
  EXPECT_THAT(rejection(ErrorKind::kUsage), AllOf(HasSubstr("holds 2"), HasSubstr("/a, "), HasSubstr("/b")));
  EXPECT_THAT(list_checkpoints(dir_.path()).checkpoints, ElementsAre(dir_ / "a", dir_ / "b"));
}

TEST_F(CheckpointSearchTest, LeftOversAreNeverEntered) {
  put("checkpoint_1.deleting/pytorch_model_fsdp_0/.metadata");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("checkpoint_1.deleting' is left over"));
  put("checkpoint_0/pytorch_model_fsdp_0/.metadata");
  EXPECT_EQ(found(Want::kModel), "checkpoint_0/pytorch_model_fsdp_0");
}

TEST_F(CheckpointSearchTest, SaysWhatIsThereInstead) {
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("holds no checkpoint of a model"));
  put("x/__0_0.distcp");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("no .metadata"));
  EXPECT_THAT(rejection(ErrorKind::kMissing, Want::kAny), HasSubstr("no .metadata"));
  EXPECT_THAT(rejection(ErrorKind::kMissing, Want::kOptimizer),
              HasSubstr("holds no checkpoint of an optimizer"));
}

}  // namespace
}  // namespace accel::ckpt
