#include "ckpt/checkpoint_kind.hpp"

#include <gmock/gmock.h>

#include "ckpt/endian.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

class CheckpointKindTest : public ::testing::Test {
 protected:
  std::filesystem::path put(const std::string& name) {
    std::filesystem::create_directories((dir_ / name).parent_path());
    write_file(dir_ / name, "");
    return dir_ / name;
  }
  std::string rejection(ErrorKind kind) {
    return error_of(kind, [&] { (void)find_model_directory(dir_.path()); });
  }
  TempDir dir_;
};

TEST_F(CheckpointKindTest, TheDirectoryItself) {
  put(".metadata");
  EXPECT_EQ(kind_of(dir_.path()), Kind::kDcp);
  EXPECT_EQ(find_model_directory(dir_.path()), dir_.path());
}

TEST_F(CheckpointKindTest, TheOneBelow) {
  put("checkpoints/checkpoint_3/pytorch_model_fsdp_0/.metadata");
  EXPECT_EQ(find_model_directory(dir_.path()), dir_ / "checkpoints/checkpoint_3/pytorch_model_fsdp_0");
}

TEST_F(CheckpointKindTest, AnOptimizerBesideTheModelDoesNotCount) {
  put("optimizer_0/.metadata");
  put("pytorch_model_fsdp_0/.metadata");
  EXPECT_EQ(find_model_directory(dir_.path()), dir_ / "pytorch_model_fsdp_0");
}

TEST_F(CheckpointKindTest, AnOptimizerAloneIsFound) {
  put("optimizer_0/.metadata");
  EXPECT_EQ(find_model_directory(dir_.path()), dir_ / "optimizer_0");
}

TEST_F(CheckpointKindTest, SeveralAreNamed) {
  put("b/.metadata");
  put("a/.metadata");
  EXPECT_THAT(rejection(ErrorKind::kUsage), AllOf(HasSubstr("holds 2"), HasSubstr("/a, "), HasSubstr("/b")));
}

TEST_F(CheckpointKindTest, SaysWhatIsThereInstead) {
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("holds no sharded checkpoint"));
  put("pytorch_model_fsdp_rank0.bin");
  EXPECT_THAT(rejection(ErrorKind::kFailure), HasSubstr("local checkpoint; merging those is not there yet"));
  put("__0_0.distcp");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("no .metadata"));
}

TEST_F(CheckpointKindTest, NothingIsMissing) {
  (void)error_of(ErrorKind::kMissing, [&] { (void)kind_of(dir_ / "nothing"); });
}

TEST_F(CheckpointKindTest, FilesAreKnownByTheirFirstBytes) {
  EXPECT_EQ(kind_of(put("empty.bin")), Kind::kUnknown);
  std::string safetensors;
  put_uint(safetensors, 2, 8);
  write_file(dir_ / "model", safetensors + "{}");
  EXPECT_EQ(kind_of(dir_ / "model"), Kind::kSafetensors);
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)find_model_directory(dir_ / "model"); }),
              HasSubstr("one file (safetensors)"));
  EXPECT_EQ(kind_of(put("model.safetensors")), Kind::kSafetensors);
}

}  // namespace
}  // namespace accel::ckpt
