#include "base/files/fault.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/crash_matrix.hpp"
#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"

namespace accel::fault {
namespace {

using accel::testing::Ending;
using accel::testing::read_file;
using accel::testing::run_with_faults;
using accel::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void write(const std::filesystem::path& dir) {
  File file = File::create_new(dir / "a");
  file.write_at(0, std::as_bytes(std::span("12345678", 8)));
  file.sync();
  file.close();
  rename_durably(dir / "a", dir / "b");
}

class FaultTest : public ::testing::Test {
 protected:
  void SetUp() override { ACCEL_NEEDS_FAULTS(); }
};

TEST_F(FaultTest, NumbersTheCalls) {
  const TempDir dir;
  const Scope scope("count");
  write(dir.path());
  EXPECT_THAT(scope.points(),
              ElementsAre(StartsWith("create "), StartsWith("write "), StartsWith("sync "),
                          AllOf(StartsWith("rename "), EndsWith("/b")), StartsWith("sync-dir ")));
}

TEST_F(FaultTest, FailsTheNthCallAlone) {
  const TempDir dir;
  const Scope scope("fail@2:ENOSPC");
  try {
    write(dir.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("No space left on device"));
  }
  EXPECT_EQ(read_file(dir / "a"), "");
  std::filesystem::remove(dir / "a");
  write(dir.path());
  EXPECT_EQ(read_file(dir / "b"), "12345678");
}

TEST_F(FaultTest, FailsEveryCallOfAnOperation) {
  const TempDir dir;
  const Scope scope("fail@mkdir:EROFS");
  EXPECT_THROW(make_directory(dir / "x"), Error);
  EXPECT_THROW(make_directory(dir / "y"), Error);
  write(dir.path());
}

TEST_F(FaultTest, AFullDiskStaysFullButLetsRemove) {
  const TempDir dir;
  const Scope scope("full@3");
  EXPECT_NO_THROW(File::create_new(dir / "a"));
  EXPECT_NO_THROW(File::create_new(dir / "b"));
  EXPECT_THROW(File::create_new(dir / "c"), Error);
  remove_file(dir / "a");
  EXPECT_THROW(make_directory(dir / "d"), Error);
}

TEST_F(FaultTest, KillsBeforeAndAfterTheCall) {
  const TempDir dir;
  EXPECT_EQ(run_with_faults("kill@1", [&] { write(dir.path()); }), Ending::kKilled);
  EXPECT_FALSE(std::filesystem::exists(dir / "a"));
  EXPECT_EQ(run_with_faults("killafter@1", [&] { write(dir.path()); }), Ending::kKilled);
  EXPECT_TRUE(std::filesystem::exists(dir / "a"));
  EXPECT_EQ(run_with_faults("kill@99", [&] { remove_file(dir / "a"); }), Ending::kSucceeded);
}

TEST_F(FaultTest, TearsAWriteAndAKernelCopy) {
  const TempDir dir;
  EXPECT_EQ(run_with_faults("torn@2", [&] { write(dir.path()); }), Ending::kKilled);
  EXPECT_EQ(read_file(dir / "a"), "1234");
  accel::testing::write_file(dir / "source", "abcdefgh");
  const auto copy = [&] {
    const File source = File::open_read(dir / "source");
    File target = File::create_new(dir / "target");
    if (target.copy_from(source, 0, 0, 8) != 8u) throw std::runtime_error("not copied");
  };
  EXPECT_EQ(run_with_faults("torn@2", copy), Ending::kKilled);
  EXPECT_EQ(read_file(dir / "target"), "abcd");
}

TEST_F(FaultTest, TheFirstPlanThatAppliesWins) {
  const TempDir dir;
  const Scope scope("fail@1:EROFS,fail@create:EDQUOT");
  const auto message = [&] {
    try {
      File::create_new(dir / "a");
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  EXPECT_THAT(message(), HasSubstr("Read-only"));
  EXPECT_THAT(message(), HasSubstr("quota"));
}

TEST_F(FaultTest, RefusesWhatIsNoPlan) {
  for (const char* plan : {"kill", "kill@", "kill@0", "kill@x", "kill@1:EIO", "kill@rename", "fail@1:EWHAT",
                           "burn@1", "fail@1x", "count@1"}) {
    EXPECT_THROW(Scope{plan}, Error) << plan;
  }
}

TEST_F(FaultTest, ReadsTheEnvironmentOfTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // A new process, which inherits what is set here.
  const TempDir dir;
  ::setenv("ACCEL_FAULT", "kill@2", 0);
  ::setenv("ACCEL_FAULT_LOG", (dir / "log").c_str(), 0);
  EXPECT_EXIT(write(dir.path()), ::testing::KilledBySignal(SIGKILL), "");
  ::unsetenv("ACCEL_FAULT");
  ::unsetenv("ACCEL_FAULT_LOG");
  EXPECT_THAT(read_file(dir / "log"), ::testing::MatchesRegex("1 create /.*/a\n2 write /.*/a\n"));
}

}  // namespace
}  // namespace accel::fault
