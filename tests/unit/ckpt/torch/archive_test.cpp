#include "ckpt/torch/archive.hpp"

#include <gtest/gtest.h>

#include "ckpt/pickle/reader.hpp"
#include "ckpt/pickle/writer.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/zip/index.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using testing::names_in;
using testing::read_file;
using testing::TempDir;

TEST(TorchArchiveTest, HasTheRecordsOfTorchSaveInItsOrder) {
  const TempDir dir;
  const std::uint64_t storage_bytes = 8;
  const TorchArchive archive("pickle", {&storage_bytes, 1});
  {
    SummedFile file(dir / "a.pt");
    archive.write(file, [](std::size_t) { return bytes_of("12345678"); });
    EXPECT_EQ(file.finish().bytes, archive.total_bytes());
  }
  const File file = File::open_read(dir / "a.pt");
  const FileWindow window(file, 0, file.size());
  const ZipIndex zip(window);
  std::vector<std::string> names;
  for (const ZipEntry& entry : zip.entries()) names.push_back(entry.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"archive/data.pkl", "archive/.format_version",
                                      "archive/.storage_alignment", "archive/byteorder", "archive/data/0",
                                      "archive/version", "archive/.data/serialization_id"}));
  for (const ZipEntry& entry : zip.entries()) EXPECT_NO_THROW((void)read_record(window, entry)) << entry.name;
  EXPECT_EQ(data_offset_of(window, *zip.find("data/0")), archive.storage_offset(0));
  EXPECT_EQ(archive.storage_offset(0) % 64, 0U);
  EXPECT_EQ(read_file(dir / "a.pt").substr(archive.storage_offset(0), 8), "12345678");
}

TEST(TorchArchiveTest, LengthDoesNotDependOnContents) {
  const std::uint64_t bytes = 4;
  const auto write = [&](std::string_view contents) {
    const TempDir dir;
    SummedFile file(dir / "a");
    TorchArchive("p", {&bytes, 1}).write(file, [&](std::size_t) { return bytes_of(contents); });
    return file.finish();
  };
  EXPECT_EQ(write("aaaa").bytes, write("bbbb").bytes);
  EXPECT_NE(write("aaaa").crc32, write("bbbb").crc32);
}

TEST(TorchArchiveTest, SaysWhatEveryRecordHoldsButTheStorages) {
  const std::vector<std::uint64_t> bytes{4, 0};
  const TorchArchive archive("pickle", bytes);
  std::vector<std::string> contents;
  for (std::size_t i = 0; i < archive.layout().records().size(); ++i) {
    const auto storage = archive.storage_of(i);
    contents.push_back(storage ? "storage " + std::to_string(*storage) : std::string(archive.text_of(i)));
    EXPECT_TRUE(storage || contents.back().size() == archive.layout().records()[i].size);
  }
  const std::string id = contents.back();
  EXPECT_EQ(contents,
            (std::vector<std::string>{"pickle", "1", "64", "little", "storage 0", "storage 1", "3\n", id}));
  EXPECT_EQ(id.size(), 40U);
  const std::string_view same = id;
  const auto id_of = [](const TorchArchive& other) {
    return other.text_of(other.layout().records().size() - 1);
  };
  EXPECT_EQ(id_of(TorchArchive("pickle", bytes)), same);
  EXPECT_NE(id_of(TorchArchive("pickld", bytes)), same);
  EXPECT_NE(id_of(TorchArchive("pickle", bytes, "root")), same);
}

TEST(TorchArchiveTest, RefusesAStorageOfAnotherSize) {
  const TempDir dir;
  const std::uint64_t bytes = 4;
  {
    SummedFile file(dir / "a");
    EXPECT_THROW(TorchArchive("p", {&bytes, 1}).write(file, [](std::size_t) { return bytes_of("abc"); }),
                 Error);
  }
  EXPECT_TRUE(names_in(dir.path()).empty());
}

}  // namespace
}  // namespace accel::ckpt
