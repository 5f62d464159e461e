#include "ckpt/read/kind.hpp"

#include <gmock/gmock.h>

#include "ckpt/io/endian.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using testing::TempDir;
using testing::write_file;

class CheckpointKindTest : public ::testing::Test {
 protected:
  std::filesystem::path put(const std::string& name) {
    std::filesystem::create_directories((dir_ / name).parent_path());
    write_file(dir_ / name, "");
    return dir_ / name;
  }
  TempDir dir_;
};

TEST_F(CheckpointKindTest, DirectoriesAreKnownByTheirNames) {
  const auto kind_with = [&](const char* directory, std::initializer_list<const char*> names) {
    for (const char* name : names) put(std::string(directory) + "/" + name);
    return kind_of(dir_ / directory);
  };
  EXPECT_EQ(kind_with("a", {".metadata", "model.safetensors"}), Kind::kDcp);
  EXPECT_EQ(kind_with("b", {"__0.metadata", "__0_0.distcp"}), Kind::kDcp);
  EXPECT_EQ(kind_with("c", {"shard-00001-model-00001-of-00001.safetensors"}), Kind::kDcpSafetensors);
  EXPECT_EQ(kind_with("d", {"a.safetensors", "b.safetensors"}), Kind::kSafetensorsSharded);
  EXPECT_EQ(kind_with("e", {"model.safetensors.index.json"}), Kind::kSafetensorsSharded);
  EXPECT_EQ(kind_with("f", {"pytorch_model.bin.index.json"}), Kind::kTorchSharded);
  EXPECT_EQ(kind_with("g", {"model.safetensors", "adapter.safetensors"}), Kind::kDirectory);
  EXPECT_EQ(kind_with("h", {"model.safetensors", "pytorch_model.bin.index.json"}), Kind::kDirectory);
  EXPECT_EQ(kind_with("i", {"__0_0.distcp"}), Kind::kDirectory);
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
  EXPECT_EQ(kind_of(put("model.safetensors")), Kind::kSafetensors);
}

TEST_F(CheckpointKindTest, FilesThatStandForASet) {
  EXPECT_EQ(kind_of(put("model.safetensors.index.json")), Kind::kSafetensorsSharded);
  EXPECT_EQ(kind_of(put("pytorch_model.bin.index.json")), Kind::kTorchSharded);
  EXPECT_EQ(kind_of(put("shard-00001-model-00001-of-00001.safetensors")), Kind::kDcpSafetensors);
  EXPECT_EQ(kind_of(put("pytorch_model_fsdp_1_rank0.bin")), Kind::kDtensor);
  put("pytorch_model_fsdp_rank0.json");
  EXPECT_EQ(kind_of(put("pytorch_model_fsdp_rank0.bin")), Kind::kLocal);
}

TEST(KindTest, EveryNameIsItsOwn) {
  std::set<std::string_view> names;
  for (int kind = 0; kind <= static_cast<int>(Kind::kUnknown); ++kind)
    names.insert(name_of(static_cast<Kind>(kind)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Kind::kUnknown) + 1);
}

}  // namespace
}  // namespace accel::ckpt
