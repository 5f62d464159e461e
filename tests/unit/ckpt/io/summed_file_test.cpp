#include "ckpt/io/summed_file.hpp"

#include <gtest/gtest.h>

#include "ckpt/io/crc32.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using testing::names_in;
using testing::pattern;
using testing::read_file;
using testing::TempDir;
using testing::write_file;

TEST(SummedFileTest, SmallAndLargePiecesKeepTheirOrder) {
  const TempDir dir;
  SummedFile file(dir / "f");
  std::string expected;
  for (const std::size_t bytes : {3U, 300'000U, 7U, 200'000U, 100'000U, 0U, 5U}) {
    const std::string piece = pattern(bytes, static_cast<std::uint32_t>(bytes));
    file.append(piece);
    expected += piece;
  }
  file.append_zeros(70);
  expected.append(70, '\0');
  const FileSummary summary = file.finish();
  EXPECT_EQ(read_file(dir / "f"), expected);
  EXPECT_EQ(summary.name, "f");
  EXPECT_EQ(summary.bytes, expected.size());
  EXPECT_EQ(summary.crc32, crc32(bytes_of(expected)));
}

TEST(SummedFileTest, FilesOfManyBlocksAreWholeWhereverTheyEnd) {
  constexpr std::size_t kBlock = std::size_t{4} << 20;
  for (const std::size_t bytes : {kBlock - 1, kBlock, kBlock + 1, 2 * kBlock + 4097, 3 * kBlock}) {
    const TempDir dir;
    const std::string expected = pattern(bytes, 1);
    SummedFile file(dir / "f");
    for (std::size_t at = 0; at < bytes; at += 777'777)
      file.append(std::string_view(expected).substr(at, 777'777));
    const FileSummary summary = file.finish();
    EXPECT_EQ(summary.bytes, bytes);
    EXPECT_TRUE(read_file(dir / "f") == expected) << bytes;
    EXPECT_EQ(summary.crc32, crc32(bytes_of(expected)));
  }
}

TEST(SummedFileTest, LeavesNothingWithoutFinish) {
  const TempDir dir;
  { SummedFile(dir / "f").append("x"); }
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(SummedFileTest, RefusesAnExistingFile) {
  const TempDir dir;
  write_file(dir / "f", "old");
  EXPECT_THROW(SummedFile(dir / "f"), Error);
  EXPECT_EQ(read_file(dir / "f"), "old");
}

}  // namespace
}  // namespace accel::ckpt
