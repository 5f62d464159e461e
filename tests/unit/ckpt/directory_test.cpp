#include "ckpt/directory.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::TempDir;
using testing::write_file;

TEST(FilesInTest, AreSortedAndOnlyFiles) {
  const TempDir dir;
  for (const char* name : {"b.bin", "a.bin", "a.pt", ".bin", "a"}) write_file(dir / name, "");
  std::filesystem::create_directory(dir / "d.bin");
  EXPECT_THAT(files_in(dir.path(), "", ".bin"), ElementsAre(".bin", "a.bin", "b.bin"));
  EXPECT_THAT(files_in(dir.path(), "a", ""), ElementsAre("a", "a.bin", "a.pt"));
  EXPECT_THAT(files_in(dir.path(), "a.b", ".bin"), ElementsAre());
  EXPECT_THROW((void)files_in(dir / "gone", "", ""), Error);
}

}  // namespace
}  // namespace accel::ckpt
