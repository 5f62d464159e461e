#include "ckpt/zip/layout.hpp"

#include <gtest/gtest.h>

#include <string>

#include "ckpt/io/endian.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

TEST(ZipLayoutTest, DataIsAlignedAndLengthsAddUp) {
  const ZipLayout layout({{"archive/data.pkl", 154}, {"archive/data/0", 24}, {"archive/version", 2}});
  std::string archive;
  for (std::size_t i = 0; i < layout.records().size(); ++i) {
    EXPECT_EQ(archive.size(), layout.records()[i].header_offset);
    archive += layout.header(i);
    EXPECT_EQ(archive.size(), layout.records()[i].data_offset);
    EXPECT_EQ(archive.size() % 64, 0U);
    archive.append(layout.records()[i].size, 'x');
    archive += layout.descriptor(i, 1);
  }
  archive += layout.directory(std::vector<std::uint32_t>{1, 2, 3});
  EXPECT_EQ(archive.size(), layout.total_bytes());
}

TEST(ZipLayoutTest, AnEmptyRecordHasNoDescriptor) {
  const ZipLayout layout({{"archive/data/0", 0}});
  EXPECT_EQ(layout.descriptor(0, 0), "");
  EXPECT_EQ(get_uint(bytes_of(layout.header(0)), 6, 2), 0x0800U);
}

// The numbers below are those that torch 2.11 gives for a storage of 4 GiB and a small one behind it.
TEST(ZipLayoutTest, FourGiBNeedsZip64) {
  const ZipLayout layout({{"big/data/0", 4 * kGiB}, {"big/data/1", 12}});
  const std::string header = layout.header(0);
  EXPECT_EQ(header.size() % 64, 0U);
  EXPECT_EQ(header.substr(40, 4), std::string("\x01\x00\x10\x00", 4));
  EXPECT_EQ(get_uint(bytes_of(header), 44, 8), 4 * kGiB);
  EXPECT_EQ(get_uint(bytes_of(header), 52, 8), 0U);  // The compressed size, which only the directory has.
  EXPECT_EQ(layout.descriptor(0, 7).size(), 24U);

  // Behind 4 GiB, the offset needs 64 bits, and the descriptor is long as well.
  const std::string far = layout.header(1);
  EXPECT_EQ(far.substr(40, 4), std::string("\x01\x00\x08\x00", 4));
  EXPECT_EQ(get_uint(bytes_of(far), 44, 8), layout.records()[1].header_offset);
  EXPECT_EQ(layout.descriptor(1, 7).size(), 24U);
  EXPECT_EQ(layout.records()[1].data_offset % 64, 0U);
}

TEST(ZipLayoutTest, DirectoryOfALargeArchive) {
  const ZipLayout layout({{"big/data/0", 4 * kGiB}, {"big/data/1", 12}});
  const std::string directory = layout.directory(std::vector<std::uint32_t>{1, 2});
  EXPECT_EQ(get_uint(bytes_of(directory), 20, 4), 0xffffffffU);
  EXPECT_EQ(get_uint(bytes_of(directory), 24, 4), 0xffffffffU);
  EXPECT_EQ(get_uint(bytes_of(directory), directory.size() - 6, 4), 0xffffffffU);  // Offset of the directory.
  const ZipRecord& last = layout.records()[1];
  EXPECT_EQ(layout.total_bytes(), last.data_offset + 12 + 24 + directory.size());
}

}  // namespace
}  // namespace accel::ckpt
