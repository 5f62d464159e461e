#include "base/files/atomic_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/crash_matrix.hpp"
#include "base/error.hpp"
#include "base/files/leftover.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using testing::names_in;
using testing::read_file;
using testing::TempDir;
using testing::write_file;

TEST(AtomicFileTest, AppearsOnlyAtCommit) {
  const TempDir dir;
  AtomicFile file(dir / "out", AtomicFile::Existing::kRefuse);
  file.append("hello ");
  file.append("world");
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
  file.commit();
  EXPECT_EQ(read_file(dir / "out"), "hello world");
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"out"});
}

TEST(AtomicFileTest, DestructorDiscardsAndKeepsTheOldFile) {
  const TempDir dir;
  write_file(dir / "out", "old");
  {
    AtomicFile file(dir / "out", AtomicFile::Existing::kReplace);
    file.append("new");
  }
  EXPECT_EQ(read_file(dir / "out"), "old");
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"out"});
}

TEST(AtomicFileTest, ReplacesUnderReplace) {
  const TempDir dir;
  write_file(dir / "out", "old and longer");
  write_file_atomically(dir / "out", "new");
  EXPECT_EQ(read_file(dir / "out"), "new");
}

TEST(AtomicFileTest, RefusesAnExistingTarget) {
  const TempDir dir;
  write_file(dir / "out", "old");
  EXPECT_THROW(AtomicFile(dir / "out", AtomicFile::Existing::kRefuse), Error);
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"out"});
}

TEST(AtomicFileTest, RefusesATargetThatAppearedMeanwhile) {
  const TempDir dir;
  {
    AtomicFile file(dir / "out", AtomicFile::Existing::kRefuse);
    file.append("mine");
    write_file(dir / "out", "theirs");
    EXPECT_THROW(file.commit(), Error);
  }
  EXPECT_EQ(read_file(dir / "out"), "theirs");
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"out"});
}

TEST(AtomicFileTest, HonoursTheUmask) {
  const TempDir dir;
  const mode_t old = ::umask(027);
  write_file_atomically(dir / "out", "x");
  ::umask(old);
  struct stat status {};
  ASSERT_EQ(::stat((dir / "out").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(AtomicFileTest, MakesParentsAndTakesThemBack) {
  const TempDir dir;
  const auto make = [&](bool commit) {
    AtomicFile file(dir / "a/b/out", AtomicFile::Existing::kRefuse, AtomicFile::Parents::kMake);
    if (commit) file.commit();
  };
  make(false);
  EXPECT_TRUE(names_in(dir.path()).empty());
  make(true);
  EXPECT_TRUE(std::filesystem::exists(dir / "a/b/out"));
}

TEST(AtomicFileTest, NamesAMissingDirectory) {
  const TempDir dir;
  try {
    AtomicFile file(dir / "no/out", AtomicFile::Existing::kReplace);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("No such file or directory"), std::string::npos) << error.message();
  }
}

// After any fault there is the old file or the new one, and nothing beside it.
void check_crashes(AtomicFile::Existing existing, const std::string& always) {
  ACCEL_NEEDS_FAULTS();
  const std::string old = existing == AtomicFile::Existing::kReplace ? "old" : "";
  testing::CrashScenario scenario;
  scenario.always = always;
  scenario.prepare = [&](const std::filesystem::path& dir) {
    if (!old.empty()) write_file(dir / "out", old);
  };
  scenario.work = [&](const std::filesystem::path& dir) {
    AtomicFile file(dir / "out", existing);
    file.append("hello ");
    file.append("world");
    file.commit();
  };
  const std::size_t runs = testing::run_crash_matrix(scenario, [&](const testing::CrashRun& run) {
    const std::string now = read_file(run.dir / "out");
    EXPECT_TRUE(now == old || now == "hello world") << now;
    EXPECT_EQ(std::filesystem::exists(run.dir / "out"), !now.empty());
    if (run.ending == testing::Ending::kFailed) {
      EXPECT_EQ(now, run.point == "sync-dir" ? "hello world" : old);
      EXPECT_EQ(names_in(run.dir).size(), now.empty() ? 0u : 1u);
    }
    if (now == "hello world" && existing == AtomicFile::Existing::kRefuse) {
      sweep_leftovers(run.dir / "out");
    } else {
      scenario.work(run.dir);
    }
    EXPECT_EQ(read_file(run.dir / "out"), "hello world");
    EXPECT_EQ(names_in(run.dir), std::vector<std::string>{"out"});
  });
  std::printf("%zu crash points and modes\n", runs);
}

TEST(AtomicFileCrashTest, New) { check_crashes(AtomicFile::Existing::kRefuse, ""); }

TEST(AtomicFileCrashTest, NewWithoutRenameToFree) {
  check_crashes(AtomicFile::Existing::kRefuse, "fail@rename-new:EINVAL");
}

TEST(AtomicFileCrashTest, Replacing) { check_crashes(AtomicFile::Existing::kReplace, ""); }

}  // namespace
}  // namespace accel
