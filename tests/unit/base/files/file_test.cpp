#include "base/files/file.hpp"

#include <gtest/gtest.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/error.hpp"
#include "base/files/fd.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using testing::read_file;
using testing::TempDir;
using testing::write_file;

TEST(FileTest, ReadsAndWritesAtOffsets) {
  const TempDir dir;
  File file = File::create_new(dir / "f");
  file.write_at(3, std::as_bytes(std::span("abc", 3)));
  EXPECT_EQ(file.size(), 6u);
  std::array<char, 2> two{};
  file.read_at(4, std::as_writable_bytes(std::span(two)));
  EXPECT_EQ(std::string(two.data(), 2), "bc");
}

TEST(FileTest, ReadingPastTheEndIsCorrupt) {
  const TempDir dir;
  write_file(dir / "f", "abc");
  const File file = File::open_read(dir / "f");
  std::array<std::byte, 4> four{};
  try {
    file.read_at(0, four);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_NE(error.message().find("ends at byte 3"), std::string::npos) << error.message();
  }
}

TEST(FileTest, CreateNewRefusesAnExistingFile) {
  const TempDir dir;
  write_file(dir / "f", "abc");
  EXPECT_THROW(File::create_new(dir / "f"), Error);
  EXPECT_EQ(read_file(dir / "f"), "abc");
}

TEST(FileTest, MapsAFileAndAnEmptyOne) {
  const TempDir dir;
  write_file(dir / "f", "abc");
  write_file(dir / "empty", "");
  const MappedFile mapped(dir / "f");
  ASSERT_EQ(mapped.bytes().size(), 3u);
  EXPECT_EQ(std::memcmp(mapped.bytes().data(), "abc", 3), 0);
  EXPECT_TRUE(MappedFile(dir / "empty").bytes().empty());
}

TEST(FileTest, MakesDirectoriesWithTheirParents) {
  const TempDir dir;
  make_directories(dir / "a/b/c");
  make_directories(dir / "a/b/c");
  EXPECT_TRUE(std::filesystem::is_directory(dir / "a/b/c"));
  write_file(dir / "file", "");
  EXPECT_THROW(make_directories(dir / "file"), Error);
  EXPECT_THROW(make_directories(dir / "file/below"), Error);
}

TEST(FileTest, ReadTextFileHasALimit) {
  const TempDir dir;
  write_file(dir / "f", "abcd");
  EXPECT_EQ(read_text_file(dir / "f"), "abcd");
  EXPECT_THROW(read_text_file(dir / "f", 3), Error);
  EXPECT_THROW(read_text_file(dir.path()), Error);
}

std::string message_for(const std::filesystem::path& path) {
  try {
    (void)File::open_read(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    return error.message();
  }
  return "";
}

TEST(FileTest, OnlyRegularFilesAreOpenedAndNobodyIsWaitedFor) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", dir / "zero");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = (dir / "s").string();
  ASSERT_LT(name.size(), sizeof address.sun_path);
  name.copy(address.sun_path, name.size());
  const Fd listener(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);

  const auto what = [&](const char* file) { return "'" + (dir / file).string() + "' is "; };
  EXPECT_EQ(message_for(dir / "pipe"), what("pipe") + "a FIFO, not a regular file");
  EXPECT_EQ(message_for(dir / "zero"), what("zero") + "a character device, not a regular file");
  EXPECT_EQ(message_for(dir / "s"), what("s") + "a socket, not a regular file");
  EXPECT_EQ(message_for(dir.path()), "'" + dir.path().string() + "' is a directory, not a regular file");
  EXPECT_THROW((void)read_text_file(dir / "pipe"), Error);
  EXPECT_THROW((void)MappedFile(dir / "pipe"), Error);
}

TEST(FileTest, ParentOfABareNameIsTheCurrentDirectory) {
  EXPECT_EQ(parent_of("name"), ".");
  EXPECT_EQ(parent_of("a/b"), "a");
}

}  // namespace
}  // namespace accel
