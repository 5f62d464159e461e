#include "ckpt/zip/index.hpp"

#include <gmock/gmock.h>

#include "ckpt/torch/archive.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::expect_ok_or_error;
using ::testing::HasSubstr;
using testing::read_file;
using testing::TempDir;
using testing::write_file;

std::string small_archive() {
  const TempDir dir;
  const std::vector<std::uint64_t> bytes{4, 4};
  SummedFile file(dir / "a");
  TorchArchive("pickle", bytes).write(file, [](std::size_t) { return bytes_of("data"); });
  file.finish();
  return read_file(dir / "a");
}

// Does everything that a reader does with an archive.
void read_all(const std::filesystem::path& path) {
  const File file = File::open_read(path);
  const FileWindow window(file, 0, file.size());
  const ZipIndex zip(window);
  for (const ZipEntry& entry : zip.entries()) (void)read_record(window, entry);
}

class ZipIndexTest : public ::testing::Test {
 protected:
  // The error of reading the archive with its bytes at `at` replaced by `text`.
  std::string rejection(std::size_t at, std::string_view text) {
    std::string broken = archive_;
    broken.replace(at, text.size(), text);
    write_file(dir_ / "broken", broken);
    return error_of(ErrorKind::kCorrupt, [&] { read_all(dir_ / "broken"); });
  }

  [[nodiscard]] std::size_t directory_of(std::string_view name) const {
    return archive_.rfind(name) - 46;  // The last occurrence of a name is the one in the directory.
  }

  TempDir dir_;
  std::string archive_ = small_archive();
};

TEST_F(ZipIndexTest, ReadsWhatItShould) {
  write_file(dir_ / "a", archive_);
  const File file = File::open_read(dir_ / "a");
  const FileWindow window(file, 0, file.size());
  EXPECT_TRUE(looks_like_zip(window));
  const ZipIndex zip(window);
  EXPECT_EQ(zip.root(), "archive");
  ASSERT_NE(zip.find("data/0"), nullptr);
  EXPECT_EQ(zip.find("data/2"), nullptr);
  EXPECT_EQ(zip.find("0"), nullptr);
  const auto data = read_record(window, *zip.find("data/0"));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(data.data()), data.size()), "data");
}

TEST_F(ZipIndexTest, ReadsAnArchiveInsideAFile) {
  write_file(dir_ / "a", "in front" + archive_ + "behind");
  const File file = File::open_read(dir_ / "a");
  const FileWindow window(file, 8, archive_.size());
  EXPECT_NO_THROW((void)read_record(window, *ZipIndex(window).find("data/0")));
}

TEST_F(ZipIndexTest, ReadsAnArchiveWithAComment) {
  std::string commented = archive_ + std::string(5000, 'c');
  commented.replace(archive_.size() - 2, 2, std::string("\x88\x13", 2));
  write_file(dir_ / "a", commented);
  EXPECT_NO_THROW(read_all(dir_ / "a"));
}

TEST_F(ZipIndexTest, RejectsAWindowBeyondTheFile) {
  write_file(dir_ / "a", "short");
  const File file = File::open_read(dir_ / "a");
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { FileWindow(file, 3, 4); }), HasSubstr("has 5 bytes"));
  EXPECT_THROW(FileWindow(file, UINT64_MAX, 2), Error);
}

TEST_F(ZipIndexTest, RejectsAFlippedByteInARecord) {
  EXPECT_THAT(rejection(archive_.find("pickle", 60), "pickld"), HasSubstr("CRC"));
}

TEST_F(ZipIndexTest, RejectsARecordThatIsNotCompressedAsItSays) {
  EXPECT_THAT(rejection(directory_of("archive/data/0") + 10, "\x08"), HasSubstr("cannot be unpacked"));
}

TEST_F(ZipIndexTest, RejectsAnEncryptedRecord) {
  EXPECT_THAT(rejection(directory_of("archive/data/0") + 8, "\x09"), HasSubstr("is encrypted"));
}

TEST_F(ZipIndexTest, RejectsARecordThatReachesIntoTheDirectory) {
  EXPECT_THAT(rejection(directory_of("archive/data/0") + 20, "\xff\xff\x01"),
              HasSubstr("reaches into the directory"));
}

TEST_F(ZipIndexTest, RejectsANameThatComesTwice) {
  EXPECT_THAT(rejection(directory_of("archive/data/1") + 46, "archive/data/0"),
              HasSubstr("'archive/data/0' comes twice"));
}

TEST_F(ZipIndexTest, RejectsARecordWithoutItsLocalHeader) {
  EXPECT_THAT(rejection(archive_.find("PK\x03\x04", 10), "XX"), HasSubstr("no local header"));
}

TEST_F(ZipIndexTest, RejectsADirectoryWithTooFewBytes) {
  EXPECT_THAT(rejection(archive_.find("PK\x06\x06") + 32, "\xff"), HasSubstr("cannot hold 255 records"));
}

TEST_F(ZipIndexTest, RejectsADirectoryBeyondTheArchive) {
  EXPECT_THAT(rejection(archive_.find("PK\x06\x06") + 48, "\xff\xff"), HasSubstr("directory"));
}

TEST_F(ZipIndexTest, EveryTruncationIsAnError) {
  for (std::size_t size = 0; size < archive_.size(); ++size) {
    write_file(dir_ / "short", archive_.substr(0, size));
    EXPECT_THROW(read_all(dir_ / "short"), Error) << size;
  }
}

TEST_F(ZipIndexTest, EveryFlippedBitIsReadOrRejected) {
  for (std::size_t byte = 0; byte < archive_.size(); ++byte) {
    std::string broken = archive_;
    broken[byte] = static_cast<char>(static_cast<unsigned char>(broken[byte]) ^ (1U << (byte % 8)));
    write_file(dir_ / "broken", broken);
    expect_ok_or_error([&] { read_all(dir_ / "broken"); });
  }
}

}  // namespace
}  // namespace accel::ckpt
