#include "core/launch/output/log_file.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::names_in;
using accel::testing::read_file;
using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;

class LogFileTest : public ::testing::Test {
 protected:
  LogFile file(std::uint64_t max_bytes, int old_files = 4) {
    return LogFile(dir_ / "log", {max_bytes, old_files},
                   [this](const std::string& text) { warning_ = text; });
  }
  std::string text(const char* name = "log") { return read_file(dir_ / name); }
  /// All files from the oldest one on.
  std::vector<std::string> texts() {
    std::vector<std::string> all;
    for (int i = static_cast<int>(names_in(dir_.path()).size()) - 1; i > 0; --i)
      all.push_back(text(fmt::format("log.{}", i).c_str()));
    all.push_back(text());
    return all;
  }

  TempDir dir_;
  std::string warning_;
};

TEST_F(LogFileTest, WithoutAPathWritesNothing) {
  LogFile none;
  none.write("text");
  EXPECT_THAT(names_in(dir_.path()), ElementsAre());
}

TEST_F(LogFileTest, GrowsWithoutALimit) {
  LogFile log = file(0);
  for (int i = 0; i < 1000; ++i) log.write("some line\n");
  EXPECT_EQ(text().size(), 10'000U);
  EXPECT_THAT(names_in(dir_.path()), ElementsAre("log"));
}

TEST_F(LogFileTest, RotatesBetweenLines) {
  LogFile log = file(10);
  log.write("one\ntwo\nthree\n");
  EXPECT_THAT(texts(), ElementsAre("one\ntwo\n", "three\n"));
  log.write("four");
  EXPECT_THAT(texts(), ElementsAre("one\ntwo\n", "three\nfour"));
  log.write("teen\n5\n");
  EXPECT_THAT(texts(), ElementsAre("one\ntwo\n", "three\nfourteen\n", "5\n"));
}

TEST_F(LogFileTest, FillsAFileToTheLimit) {
  LogFile log = file(8);
  log.write("one\ntwo\n");
  EXPECT_THAT(texts(), ElementsAre("one\ntwo\n"));
  log.write("x\n");
  EXPECT_THAT(texts(), ElementsAre("one\ntwo\n", "x\n"));
}

TEST_F(LogFileTest, KeepsTheNewestFiles) {
  LogFile log = file(2, 2);
  for (const char* line : {"1\n", "2\n", "3\n", "4\n", "5\n"}) log.write(line);
  EXPECT_THAT(names_in(dir_.path()), ElementsAre("log", "log.1", "log.2"));
  EXPECT_THAT(texts(), ElementsAre("3\n", "4\n", "5\n"));
}

TEST_F(LogFileTest, GivesALongLineAFileOfItsOwn) {
  LogFile log = file(10);
  const std::string line = fmt::format("{}\n", std::string(1000, 'x'));
  log.write(fmt::format("one\n{}two\n", line));
  EXPECT_THAT(texts(), ElementsAre("one\n", line, "two\n"));
}

TEST_F(LogFileTest, CutsALineThatDoesNotEnd) {
  LogFile log = file(10);
  const std::string part(100'000, 'x');
  for (int i = 0; i < 25; ++i) log.write(part);
  const std::size_t most = 10 + LogFile::kLongestLine;
  std::string all;
  for (const std::string& one : texts()) {
    EXPECT_LE(one.size(), most);
    all += one;
  }
  EXPECT_EQ(all, std::string(2'500'000, 'x'));
  EXPECT_EQ(text("log.1").size(), most);
}

TEST_F(LogFileTest, LosesAndTearsNoLineHoweverItComes) {
  std::mt19937 random(7);
  std::string all;
  for (int i = 0; i < 5000; ++i) all += fmt::format("line {} {}\n", i, std::string(random() % 60, 'x'));
  LogFile log = file(2000, 1000);
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t length = std::min<std::size_t>(1 + random() % 300, all.size() - at);
    log.write(std::string_view(all).substr(at, length));
    at += length;
  }
  const std::vector<std::string> files = texts();
  EXPECT_GT(files.size(), 50U);
  EXPECT_THAT(files, Each(EndsWith("\n")));
  std::string joined;
  for (const std::string& one : files) {
    // The end of a line that had begun before the limit may follow.
    EXPECT_LE(one.size(), 2000U + 80);
    joined += one;
  }
  EXPECT_EQ(joined, all);
}

TEST_F(LogFileTest, BeginsAnew) {
  for (const char* name : {"log", "log.1", "log.2", "log.10"}) write_file(dir_ / name, "earlier");
  LogFile log = file(0);
  log.write("x");
  EXPECT_EQ(text(), "x");
  EXPECT_THAT(names_in(dir_.path()), ElementsAre("log", "log.10"));
}

TEST_F(LogFileTest, GrowsIfItCannotBeRotated) {
  LogFile log = file(4, 2);
  log.write("one\ntwo\n");
  std::filesystem::create_directories(dir_ / "log.2" / "in the way");
  log.write("three\nfour\n");
  EXPECT_EQ(text("log.1"), "one\n");
  EXPECT_EQ(text(), "two\nthree\nfour\n");
}

}  // namespace
}  // namespace accel::launch
