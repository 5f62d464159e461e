#include "base/file.hpp"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "../temp_dir.hpp"
#include "base/error.hpp"

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

TEST(FileTest, APipeIsReadToItsEnd) {
  const TempDir dir;
  const std::string text(200'000, 'x');
  const std::string pipe = (dir / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto read = [&](std::uint64_t limit) {
    std::jthread writer([&] { std::ofstream(pipe) << text; });
    return read_text_file(pipe, limit);
  };
  ::signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(read(1'000'000), text);
  EXPECT_THROW((void)read(100), Error);
}

TEST(FileTest, ParentOfABareNameIsTheCurrentDirectory) {
  EXPECT_EQ(parent_of("name"), ".");
  EXPECT_EQ(parent_of("a/b"), "a");
}

}  // namespace
}  // namespace accel
