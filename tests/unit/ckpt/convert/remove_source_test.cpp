#include "ckpt/convert/remove_source.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::flat_split;
using testing::names_in;
using testing::TempDir;
using testing::Truth;
using testing::write_checkpoint;

TEST(RemoveCheckpointTest, RemovesOnlyTheOne) {
  const TempDir dir;
  const std::vector<Truth> truths{Truth::make({"model", "a"}, DType::kFloat32, {2}, 1)};
  for (const char* name : {"a", "b"}) write_checkpoint(dir / name, truths, flat_split(truths, 2));
  remove_checkpoint(*open_checkpoint(dir / "a"));
  EXPECT_THAT(names_in(dir.path()), ElementsAre("b"));
}

TEST(RemoveCheckpointTest, NotWithWhatIsNoPartOfIt) {
  const TempDir dir;
  const std::vector<Truth> truths{Truth::make({"model", "a"}, DType::kFloat32, {2}, 1)};
  write_checkpoint(dir / "a", truths, flat_split(truths, 2));
  testing::write_file(dir / "a/model.safetensors", "of an earlier merge");
  EXPECT_THAT(testing::error_of(ErrorKind::kUsage, [&] { remove_checkpoint(*open_checkpoint(dir / "a")); }),
              ::testing::HasSubstr("'model.safetensors' in it is not part of the checkpoint"));
  EXPECT_THAT(names_in(dir / "a"), ::testing::Contains(".metadata"));
}

TEST(RemoveCheckpointTest, OnlyWhatDescribesItIsMetadata) {
  const TempDir dir;
  const std::vector<Truth> truths{Truth::make({"model", "a"}, DType::kFloat32, {2}, 1)};
  write_checkpoint(dir / "a", truths, flat_split(truths, 2));
  for (const char* name : {"notes.metadata", "__0.metadata"}) {
    testing::write_file(dir / "a" / name, "precious");
    EXPECT_THAT(testing::error_of(ErrorKind::kUsage, [&] { remove_checkpoint(*open_checkpoint(dir / "a")); }),
                ::testing::HasSubstr(std::string(name) + "' in it is not part of the checkpoint"));
    std::filesystem::remove(dir / "a" / name);
  }
  remove_checkpoint(*open_checkpoint(dir / "a/"));
  EXPECT_THAT(names_in(dir.path()), ::testing::IsEmpty());
}

}  // namespace
}  // namespace accel::ckpt
