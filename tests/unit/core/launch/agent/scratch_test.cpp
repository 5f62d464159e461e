#include "core/launch/agent/scratch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::names_in;
using accel::testing::TempDir;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Leaves a directory behind, as a launcher that is killed together with its guardian does.
void die_with_scratch(const std::filesystem::path& folder) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const Scratch scratch(folder);
    std::ofstream(scratch.path() / "rank_0_error.json") << "{}";
    ::_exit(0);
  }
  ::waitpid(pid, nullptr, 0);
}

TEST(ScratchTest, IsPrivateAndRemoved) {
  const TempDir dir;
  {
    const Scratch scratch(dir.path());
    struct stat status {};
    ASSERT_EQ(::stat(scratch.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0711U);
    std::ofstream(scratch.path() / "file") << "x";
  }
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
}

TEST(ScratchTest, ThoseOfTheDeadAreRemovedAndThoseOfTheLivingAreNot) {
  const TempDir dir;
  const Scratch living(dir.path());
  die_with_scratch(dir.path());
  die_with_scratch(dir.path());
  // Each removes the earlier ones.
  EXPECT_THAT(names_in(dir.path()), SizeIs(2));
  const Scratch next(dir.path());
  EXPECT_THAT(names_in(dir.path()), SizeIs(2));
  EXPECT_TRUE(std::filesystem::exists(living.path()));
  EXPECT_TRUE(std::filesystem::exists(next.path()));
}

TEST(ScratchTest, LinksOfThatNameAreLeftAlone) {
  const TempDir dir;
  const TempDir other;
  std::string link;
  {
    const Scratch scratch(dir.path());
    link = scratch.path().string();
  }
  std::ofstream(other / "precious") << "x";
  std::filesystem::create_symlink(other.path(), link);
  { const Scratch scratch(dir.path()); }
  EXPECT_TRUE(std::filesystem::exists(other / "precious"));
  EXPECT_THAT(names_in(dir.path()), SizeIs(1));
}

TEST(ScratchTest, TheFolderIsThatOfTheEnvironment) {
  const auto folder = [](std::optional<std::string> named) {
    return temporary_folder([&](const std::string& name) { return name == "TMPDIR" ? named : std::nullopt; });
  };
  EXPECT_EQ(folder(std::nullopt), "/tmp");
  EXPECT_EQ(folder(""), "/tmp");
  EXPECT_EQ(folder("."), std::filesystem::current_path() / ".");
  try {
    folder("/no/such/folder");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "TMPDIR: '/no/such/folder' is not a directory");
  }
}

TEST(ScratchTest, AFolderThatIsNotThereIsAnError) { EXPECT_THROW(Scratch("/no/such/folder"), Error); }

}  // namespace
}  // namespace accel::launch
