#include "ckpt/dcp/chunks.hpp"

#include <gmock/gmock.h>

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;

const std::vector<DcpFiles::Entry> kEntries{{"__0_0.distcp", 0}, {"a/longer/name/than/fits.distcp", 1}};

TEST(DcpFilesTest, KeepTheirNames) {
  std::string name = "__0_0.distcp";
  const DcpFiles files(std::vector<DcpFiles::Entry>{{name, 0}, {"", 1}}, {{}, {"stream.zstd/1"}});
  name.assign(name.size(), 'x');
  EXPECT_EQ(files[0].name, "__0_0.distcp");
  EXPECT_TRUE(files[0].transforms.empty());
  EXPECT_EQ(files[1].name, "");
  EXPECT_THAT(files[1].transforms, ElementsAre("stream.zstd/1"));
}

TEST(DcpChunksTest, AreWhatWasAdded) {
  const DcpFiles files(kEntries, {{}, {}});
  DcpChunks chunks;
  EXPECT_TRUE(chunks.empty());
  chunks.reserve(3, 2);
  for (int row = 0; row < 3; ++row) {
    chunks.add(Box{{row, 7}, {1, 2}});
    chunks.set_place(static_cast<std::size_t>(row),
                     {&files[1], std::uint64_t{10} * static_cast<std::uint64_t>(row), 5});
  }
  std::vector<std::string> seen;
  for (const DcpChunk chunk : chunks)
    seen.push_back(to_string(chunk.box) + " " + std::to_string(chunk.where.offset));
  EXPECT_THAT(seen, ElementsAre("[0:1, 7:9] 0", "[1:2, 7:9] 10", "[2:3, 7:9] 20"));
  EXPECT_EQ(chunks[2].where.file(), kEntries[1].name);
  ASSERT_EQ(chunks.boxes().size(), 3U);
  EXPECT_EQ(chunks.boxes()[1], BoxView(Box({{1, 7}, {1, 2}})));

  chunks.copy(2, 0);
  chunks.truncate(1);
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(to_string(chunks.box(0)), "[2:3, 7:9]");
  EXPECT_EQ(chunks.where(0).offset, 20U);
}

TEST(DcpChunksTest, OfScalarsHaveNoDimensions) {
  const DcpFiles files(kEntries, {{}, {}});
  DcpChunks chunks;
  chunks.add({Box{}, {&files[0], 1, 2}});
  chunks.add({Box{}, {&files[0], 3, 4}});
  EXPECT_EQ(chunks.size(), 2U);
  EXPECT_TRUE(chunks.box(1).offsets.empty());
  EXPECT_EQ(chunks.box(1).numel(), 1);
  EXPECT_EQ(chunks.where(1).offset, 3U);
}

}  // namespace
}  // namespace accel::ckpt
