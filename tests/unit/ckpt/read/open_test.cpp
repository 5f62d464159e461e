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

// What stands in a folder of weights instead of them, whatever its name says.
TEST(OpenCheckpointTest, NamesFilesOfOtherProgramsByTheirFirstBytes) {
  using namespace std::string_literals;
  const TempDir dir;
  // A zip archive of one empty record.
  const auto zip_of = [](const std::string& name) {
    const auto zeros = [](std::size_t count) { return std::string(count, '\0'); };
    const std::string size = static_cast<char>(name.size()) + zeros(1);
    const std::string record = "PK\3\4" + zeros(22) + size + zeros(2) + name;
    const std::string entry = "PK\1\2" + zeros(24) + size + zeros(16) + name;
    return record + entry + "PK\5\6" + zeros(4) + "\1"s + zeros(1) + "\1" + zeros(1) +
           static_cast<char>(entry.size()) + zeros(3) + static_cast<char>(record.size()) + zeros(5);
  };
  const std::pair<std::string, const char*> rows[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 134217728\n",
       "is a pointer of Git LFS"},
      {"\n<!DOCTYPE html>\n<html lang=\"en\">", "is a page of HTML"},
      {"\0\5\x16\7\0\2\0\0Mac OS X        "s, "is an AppleDouble file"},
      {"GGUF\3\0\0\0\x23\1\0\0\0\0\0\0"s, "is a GGUF file"},
      {"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0"s, "is an HDF5 file"},
      {"\x08\x08\x12\x07pytorch\x1a\x05"
       "2.8.0",
       "is a model of ONNX"},
      {"\x1f\x8b\x08\0\0\0\0\0\0\3 and so on"s, "is compressed with gzip"},
      {zip_of("arr_0.npy"), "is an archive of NumPy"},
      {zip_of("metadata.json"), "is an archive of Keras"},
  };
  for (const auto& [bytes, what] : rows) {
    for (const char* name : {"model.bin", "model.safetensors"}) {
      write_file(dir / name, bytes);
      EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)open_checkpoint(dir / name); }), HasSubstr(what))
          << name;
    }
  }
  write_file(dir / "model.nemo", std::string(257, 'x') + "ustar");
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)open_checkpoint(dir / "model.nemo"); }),
              HasSubstr("is an archive of NeMo"));
}

}  // namespace
}  // namespace accel::ckpt
