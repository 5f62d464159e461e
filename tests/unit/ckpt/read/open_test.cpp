#include <gmock/gmock.h>

#include "ckpt/read/checkpoint.hpp"
#include "opened.hpp"
#include "torch_files.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using testing::flat_split;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::Truth;
using testing::write_checkpoint;
using testing::write_file;
using testing::write_safetensors;

TEST(OpenCheckpointTest, TakesTheCheckpointOrADirectoryAbove) {
  const TempDir dir;
  const Truth truth = Truth::make({"w"}, DType::kInt8, {3}, 1);
  write_checkpoint(dir / "a/model", {truth}, flat_split({truth}, 1));
  for (const auto& path : {dir / "a/model", dir / "a", dir.path()}) {
    const auto checkpoint = open_checkpoint(path);
    EXPECT_EQ(checkpoint->kind(), Kind::kDcp);
    EXPECT_EQ(checkpoint->path(), dir / "a/model");
  }
  write_safetensors(dir / "b.safetensors", {truth});
  EXPECT_EQ(open_checkpoint(dir / "b.safetensors")->kind(), Kind::kSafetensors);
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)open_checkpoint(dir.path()); }),
              HasSubstr("holds 2 checkpoints"));
}

TEST(OpenCheckpointTest, SaysWhatItIsThatItCannotRead) {
  const TempDir dir;
  write_file(dir / "x.bin", "nothing that anybody knows");
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)open_checkpoint(dir / "x.bin"); }),
              HasSubstr("neither a checkpoint nor a model"));
  write_file(dir / "old.bin", std::string(257, 'x') + "ustar");
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)open_checkpoint(dir / "old.bin"); }),
              HasSubstr("a tar archive, the form of torch.save before torch 0.1.10"));
  (void)error_of(ErrorKind::kMissing, [&] { (void)open_checkpoint(dir / "gone"); });
}

}  // namespace
}  // namespace accel::ckpt
