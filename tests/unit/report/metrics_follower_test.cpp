#include "report/metrics_follower.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.hpp"
#include "base/files/atomic_file.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using testing::TempDir;
using testing::write_file;

void append(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::app) << text;
}

TEST(MetricsFollowerTest, ReadsEachLineOnceItIsWhole) {
  const TempDir dir;
  const std::filesystem::path file = dir / "metrics.jsonl";
  MetricsFollower follower(dir.path());
  EXPECT_FALSE(follower.read());  // There is no file yet.
  write_file(file, "");
  EXPECT_FALSE(follower.read());
  append(file, "{\"step\":1,\"loss\":3}\n{\"step\":2,\"lo");
  EXPECT_TRUE(follower.read());
  EXPECT_FALSE(follower.read());
  EXPECT_EQ(follower.history().curves.at("loss").size(), 1U);
  append(file, "ss\":2}\n");
  EXPECT_TRUE(follower.read());
  ASSERT_EQ(follower.history().curves.at("loss").size(), 2U);
  EXPECT_EQ(follower.history().curves.at("loss")[1].value, 2);
  append(file, "nonsense\n");
  try {
    follower.read();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("line 3: "), std::string::npos) << error.message();
  }
}

TEST(MetricsFollowerTest, AFileThatReplacesItIsReadFromItsStart) {
  const TempDir dir;
  const std::filesystem::path file = dir / "metrics.jsonl";
  write_file(file, "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n");
  write_file(dir / "config.resolved.json", "{\"seed\":1}");
  MetricsFollower follower(dir.path());
  EXPECT_TRUE(follower.read());
  write_file(dir / "config.resolved.json", "{\"seed\":2}");
  // What a run that goes on from step 1 does: the file is cut, and becomes longer than it was.
  write_file_atomically(file, "{\"step\":1,\"loss\":3}\n");
  append(file, "{\"step\":2,\"loss\":2.5,\"attempt\":1}\n{\"step\":3,\"loss\":2,\"attempt\":1}\n");
  EXPECT_TRUE(follower.read());
  ASSERT_EQ(follower.history().curves.at("loss").size(), 3U);
  EXPECT_EQ(follower.history().curves.at("loss")[1].value, 2.5);
  EXPECT_EQ(follower.history().attempts.size(), 2U);
  EXPECT_EQ(follower.history().settings.at("seed"), "2");
}

}  // namespace
}  // namespace accel
