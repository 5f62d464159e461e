#include "data/files/data_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

std::string error_of_read(const DataFile& file, std::uint64_t offset, std::size_t count) {
  std::vector<std::byte> out(count);
  try {
    file.read(offset, out);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "nothing";
}

// Sets the time of the last change to so many seconds since 1970.
void set_time(const std::filesystem::path& path, std::time_t seconds) {
  const std::array<struct timespec, 2> times = {{{seconds, 0}, {seconds, 0}}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
}

TEST(DataFileTest, ANameThatIsThereIsNoGlob) {
  const TempDir dir;
  const auto path = [&](const char* name) { return (dir / name).string(); };
  for (const char* name : {"train1.npy", "train2.npy", "train[1].npy"}) write_file(dir / name, name);
  EXPECT_EQ(data_files(path("train[1].npy")), std::vector<std::string>{path("train[1].npy")});
  EXPECT_EQ(data_files(path("train[2].npy")), std::vector<std::string>{path("train2.npy")});
  EXPECT_EQ(data_files(path("train?.npy")),
            (std::vector<std::string>{path("train1.npy"), path("train2.npy")}));
}

TEST(DataFileTest, AFileThatHasShrunkIsNamedWhereItsBytesAreMissing) {
  const TempDir dir;
  write_file(dir / "f", std::string(5000, 'x'));
  const DataFile file((dir / "f").string());
  EXPECT_EQ(error_of_read(file, 4000, 1000), "nothing");
  std::filesystem::resize_file(dir / "f", 4990);  // A mapping would have zeros behind the end.
  EXPECT_EQ(error_of_read(file, 4000, 990), "nothing");
  EXPECT_THAT(error_of_read(file, 4000, 1000),
              HasSubstr("'" + (dir / "f").string() +
                        "' has changed while the run reads it: it had 5000 bytes and has 4990"));
  std::filesystem::resize_file(dir / "f", 0);
  EXPECT_THAT(error_of_read(file, 0, 1), HasSubstr("it had 5000 bytes and has 0"));
}

TEST(DataFileTest, AChangeIsSeenUntilItIsAccepted) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  set_time(dir / "f", 1'000'000);
  const DataFile file((dir / "f").string());
  EXPECT_FALSE(file.change());
  set_time(dir / "f", 2'000'000);
  ASSERT_TRUE(file.change());
  EXPECT_THAT(*file.change(), HasSubstr("it was written at 1970-01-12"));
  file.accept_change();
  EXPECT_FALSE(file.change());
  std::filesystem::resize_file(dir / "f", 12);
  EXPECT_EQ(file.change(), "it had 10 bytes and has 12");
  EXPECT_EQ(file.size(), 10u);
}

TEST(DataFileTest, AFileThatAnotherReplacesIsStillThere) {
  const TempDir dir;
  write_file(dir / "f", "old");
  const DataFile file((dir / "f").string());
  write_file(dir / "new", "n");
  std::filesystem::rename(dir / "new", dir / "f");
  EXPECT_FALSE(file.change());
  EXPECT_EQ(error_of_read(file, 0, 3), "nothing");
}

TEST(DataFileTest, MoreFilesMayBeOpenThanTheLimitSaid) {
  const TempDir dir;
  for (int i = 0; i < 700; ++i) write_file(dir / std::to_string(i), "x");
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 2000) GTEST_SKIP() << "this process may open " << before.rlim_max << " files alone";
  const struct rlimit low { 30, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<DataFile> files;
  // A run opens the data of the training, and then those of the evaluation.
  for (int set = 0; set < 2; ++set) {
    for (const std::string& path : data_files((dir / "*").string())) files.emplace_back(path);
  }
  EXPECT_EQ(files.size(), 1400u);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace accel
