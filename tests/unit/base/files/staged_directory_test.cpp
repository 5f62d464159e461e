#include "base/files/staged_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <memory>

#include "base/crash_matrix.hpp"
#include "base/error.hpp"
#include "base/files/leftover.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;
using testing::CrashRun;
using testing::CrashScenario;
using testing::Ending;
using ::testing::HasSubstr;
using testing::names_in;
using testing::read_file;
using testing::TempDir;
using testing::Tree;
using testing::tree_of;
using testing::write_file;

void add(StagedDirectory& out, std::string_view name, std::string_view text) {
  out.create(name).write_at(0, std::as_bytes(std::span(text)));
}

bool is_shard(std::string_view name) { return name.starts_with("shard-") || name == "index"; }

StagedDirectory::Options replacing() { return {StagedDirectory::Existing::kReplace, is_shard}; }

void write_new(const fs::path& target, StagedDirectory::Options options) {
  StagedDirectory out(target, std::move(options));
  add(out, "shard-1", "new one");
  add(out, "shard-2", "new two");
  add(out, "index", "new index");
  out.set_seal("index");
  out.commit();
}

const Tree kNew = {{"index", "new index"}, {"shard-1", "new one"}, {"shard-2", "new two"}};

Tree operator+(Tree a, const Tree& b) {
  for (const auto& [name, text] : b) a[name] = text;
  return a;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(StagedDirectoryTest, AppearsOnlyAtCommitWithItsParents) {
  const TempDir dir;
  StagedDirectory out(dir / "a/b/out", {});
  add(out, "x", "text");
  EXPECT_FALSE(fs::exists(dir / "a/b/out"));
  out.commit();
  EXPECT_EQ(tree_of(dir.path()), (Tree{{"a/", ""}, {"a/b/", ""}, {"a/b/out/", ""}, {"a/b/out/x", "text"}}));
}

TEST(StagedDirectoryTest, DestructorRemovesAllItMade) {
  const TempDir dir;
  fs::create_directory(dir / "there");
  for (const char* target : {"a/b/out", "there"}) {
    StagedDirectory out(dir / target, {});
    add(out, "x", "text");
  }
  EXPECT_EQ(tree_of(dir.path()), (Tree{{"there/", ""}}));
}

TEST(StagedDirectoryTest, KeepsWhatElseIsInTheTarget) {
  const TempDir dir;
  fs::create_directories(dir / "out/sub");
  write_file(dir / "out/config", "c");
  const fs::file_time_type before = fs::last_write_time(dir / "out/sub");
  write_new(dir / "out", {});
  EXPECT_EQ(tree_of(dir / "out"), kNew + (Tree{{"config", "c"}, {"sub/", ""}}));
  EXPECT_EQ(fs::last_write_time(dir / "out/sub"), before);
  EXPECT_EQ(fs::hard_link_count(dir / "out/index"), 1u);
}

TEST(StagedDirectoryTest, TakesFilesAndDirectoriesThatOthersWroteIntoStaging) {
  for (const bool there : {false, true}) {
    const TempDir dir;
    if (there) {
      fs::create_directory(dir / "out");
      write_file(dir / "out/config", "c");
    }
    StagedDirectory out(dir / "out", {});
    fs::create_directory(out.staging() / "model");
    write_file(out.staging() / "model/data", "d");
    out.commit();
    const Tree kept = there ? Tree{{"config", "c"}} : Tree{};
    EXPECT_EQ(tree_of(dir / "out"), kept + (Tree{{"model/", ""}, {"model/data", "d"}}));
    EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"out"});
  }
}

TEST(StagedDirectoryTest, RefusesTakenNamesBeforeAndAtCommit) {
  const TempDir dir;
  fs::create_directory(dir / "out");
  write_file(dir / "out/shard-2", "theirs");
  {
    StagedDirectory out(dir / "out", {});
    add(out, "shard-1", "mine");
    EXPECT_THAT(message_of([&] { add(out, "shard-2", "mine"); }), HasSubstr("out/shard-2' is already there"));
    write_file(out.staging() / "shard-2", "mine");
    EXPECT_THAT(message_of([&] { out.commit(); }), HasSubstr("out/shard-2' is already there"));
  }
  EXPECT_EQ(tree_of(dir.path()), (Tree{{"out/", ""}, {"out/shard-2", "theirs"}}));
  const StagedDirectory::Options refusing{StagedDirectory::Existing::kRefuse, is_shard};
  EXPECT_THAT(message_of([&] { StagedDirectory(dir / "out", refusing); }),
              HasSubstr("out/shard-2' is already there"));
}

TEST(StagedDirectoryTest, RefusesATargetThatAppearedMeanwhile) {
  const TempDir dir;
  {
    StagedDirectory out(dir / "out", {});
    add(out, "x", "mine");
    fs::create_directory(dir / "out");
    EXPECT_THAT(message_of([&] { out.commit(); }), HasSubstr("out' is already there"));
  }
  EXPECT_EQ(tree_of(dir.path()), (Tree{{"out/", ""}}));
}

TEST(StagedDirectoryTest, ReplacesAnEarlierOutputAndRemovesItsStaleFiles) {
  const TempDir dir;
  fs::create_directories(dir / "out/sub/deep");
  write_file(dir / "out/config", "c");
  write_file(dir / "out/sub/deep/x", "x");
  fs::create_symlink("config", dir / "out/link");
  write_file(dir / "out/shard-1", "old");
  write_file(dir / "out/shard-9", "stale");
  fs::permissions(dir / "out", fs::perms(0750));
  fs::permissions(dir / "out/sub", fs::perms(0700));
  write_new(dir / "out", replacing());
  EXPECT_EQ(
      tree_of(dir / "out"),
      kNew + (Tree{{"config", "c"}, {"link", "c"}, {"sub/", ""}, {"sub/deep/", ""}, {"sub/deep/x", "x"}}));
  EXPECT_EQ(fs::read_symlink(dir / "out/link"), "config");
  EXPECT_EQ(fs::status(dir / "out").permissions(), fs::perms(0750));
  EXPECT_EQ(fs::status(dir / "out/sub").permissions(), fs::perms(0700));
  EXPECT_EQ(fs::hard_link_count(dir / "out/config"), 1u);
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"out"});
}

TEST(StagedDirectoryTest, ASingleFileReplacesItsNamesakeAndLeavesTheDirectoryItself) {
  const TempDir dir;
  fs::create_directory(dir / "out");
  write_file(dir / "out/x", "old");
  struct stat before {};
  ASSERT_EQ(::stat((dir / "out").c_str(), &before), 0);
  StagedDirectory out(dir / "out", replacing());
  add(out, "x", "new");
  out.commit();
  struct stat after {};
  ASSERT_EQ(::stat((dir / "out").c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(tree_of(dir.path()), (Tree{{"out/", ""}, {"out/x", "new"}}));
}

TEST(StagedDirectoryTest, FollowsASymbolicLinkToTheTarget) {
  const TempDir dir;
  fs::create_directory(dir / "real");
  write_file(dir / "real/shard-1", "old");
  fs::create_directory_symlink("real", dir / "out");
  write_new(dir / "out", replacing());
  EXPECT_TRUE(fs::is_symlink(dir / "out"));
  EXPECT_EQ(tree_of(dir / "real"), kNew);
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"out", "real"}));
}

TEST(StagedDirectoryTest, WillNotReplaceTheCurrentDirectory) {
  const TempDir dir;
  fs::create_directories(dir / "out/sub");
  write_file(dir / "out/shard-1", "old");
  const fs::path here = fs::current_path();
  fs::current_path(dir / "out/sub");
  const std::string message = message_of([&] { write_new("..", replacing()); });
  fs::current_path(here);
  EXPECT_THAT(message, HasSubstr("is the current directory"));
  EXPECT_EQ(tree_of(dir.path()), (Tree{{"out/", ""}, {"out/shard-1", "old"}, {"out/sub/", ""}}));
}

TEST(StagedDirectoryTest, RefusesAFileAsTarget) {
  const TempDir dir;
  write_file(dir / "out", "x");
  EXPECT_THAT(message_of([&] { StagedDirectory(dir / "out", replacing()); }),
              HasSubstr("is not a directory"));
}

TEST(StagedDirectoryTest, RefusesASealThatWasNotWritten) {
  const TempDir dir;
  StagedDirectory out(dir / "out", {});
  add(out, "x", "text");
  out.set_seal("index");
  EXPECT_THAT(message_of([&] { out.commit(); }), HasSubstr("'index' was to be the last file"));
}

TEST(StagedDirectoryTest, LeavesTheWorkOfLiveProcessesAlone) {
  const TempDir dir;
  auto first = std::make_unique<StagedDirectory>(dir / "out", StagedDirectory::Options{});
  add(*first, "x", "first");
  auto second = std::make_unique<StagedDirectory>(dir / "out", StagedDirectory::Options{});
  add(*second, "x", "second");
  first->commit();
  EXPECT_THROW(second->commit(), Error);
  second.reset();
  EXPECT_EQ(tree_of(dir.path()), (Tree{{"out/", ""}, {"out/x", "first"}}));
}

TEST(StagedDirectoryTest, WillNotReplaceADirectoryThatAnotherProcessWritesInto) {
  const TempDir dir;
  fs::create_directory(dir / "out");
  write_file(dir / "out/shard-1", "old");
  StagedDirectory other(dir / "out", {});
  EXPECT_THAT(message_of([&] { write_new(dir / "out", replacing()); }), HasSubstr("another process"));
  EXPECT_EQ(read_file(dir / "out/shard-1"), "old");
}

TEST(StagedDirectoryTest, HonoursTheUmask) {
  const TempDir dir;
  const mode_t old = ::umask(027);
  write_new(dir / "out", {});
  ::umask(old);
  EXPECT_EQ(fs::status(dir / "out").permissions(), fs::perms(0750));
  EXPECT_EQ(fs::status(dir / "out/index").permissions(), fs::perms(0640));
}

const Tree kOther = {{"config", "c"}, {"sub/", ""}, {"sub/x", "x"}};
const Tree kOld = kOther + Tree{{"index", "old index"}, {"shard-1", "old one"}, {"shard-9", "stale"}};

bool is_leftover(const Tree::value_type& entry) { return entry.first.starts_with(".incomplete-"); }

/// Interrupts the writing of kNew into `out` at every call. The directory `top` holds nothing else, so that
/// the test sees everything that is left behind.
void check_crashes(const Tree& old, const std::string& always, const StagedDirectory::Options& options,
                   const std::function<void(const fs::path& target, StagedDirectory::Options)>& work,
                   const Tree& complete) {
  ACCEL_NEEDS_FAULTS();
  CrashScenario scenario;
  scenario.always = always;
  scenario.seal = "index";
  scenario.prepare = [&](const fs::path& dir) {
    fs::create_directory(dir / "top");
    if (old.empty()) return;
    fs::create_directory(dir / "top/out");
    for (const auto& [name, text] : old) {
      if (name.ends_with('/')) {
        fs::create_directories(dir / "top/out" / name);
      } else {
        write_file(dir / "top/out" / name, text);
      }
    }
  };
  scenario.work = [&](const fs::path& dir) { work(dir / "top/out", options); };
  const std::size_t runs = testing::run_crash_matrix(scenario, [&](const CrashRun& run) {
    const fs::path target = run.dir / "top/out";
    const bool removal = run.point == "unlink" || run.point == "rmdir";
    const bool exists = fs::exists(target);
    Tree found = tree_of(target);
    if (run.ending != Ending::kKilled) {
      const bool done = run.ending == Ending::kSucceeded;
      if (done && removal) std::erase_if(found, is_leftover);
      EXPECT_EQ(found, done ? complete : old);
      EXPECT_EQ(exists, done || !old.empty());
      if (done) {
        EXPECT_TRUE(removal || run.point == "chmod") << run.point;
      }
      if (!done || !removal) {
        EXPECT_LE(names_in(run.dir / "top").size(), 1u);
      }
    } else if (exists) {
      // The target is as it was, complete, or without its seal.
      std::erase_if(found, is_leftover);
      EXPECT_TRUE(found == old || found == complete || !found.contains("index"))
          << ::testing::PrintToString(found);
      for (const auto& [name, text] : kOther) {
        EXPECT_TRUE(found.contains(name) || !old.contains(name)) << name;
      }
    }
    sweep_leftovers(target);
    const Tree now = tree_of(target);
    EXPECT_TRUE(now == old || now == complete) << ::testing::PrintToString(now);
    EXPECT_EQ(names_in(run.dir / "top"),
              now.empty() && old.empty() ? std::vector<std::string>{} : std::vector<std::string>{"out"});
    if (now != complete || options.existing == StagedDirectory::Existing::kReplace) scenario.work(run.dir);
    EXPECT_EQ(tree_of(run.dir / "top/out"), complete);
    EXPECT_EQ(names_in(run.dir / "top"), std::vector<std::string>{"out"});
  });
  std::printf("%zu crash points and modes\n", runs);
}

TEST(StagedDirectoryCrashTest, NewTarget) { check_crashes({}, "", {}, write_new, kNew); }

TEST(StagedDirectoryCrashTest, NewTargetWithoutRenameToFree) {
  check_crashes({}, "fail@rename-new:EINVAL", {}, write_new, kNew);
}

TEST(StagedDirectoryCrashTest, IntoADirectory) { check_crashes(kOther, "", {}, write_new, kOther + kNew); }

TEST(StagedDirectoryCrashTest, IntoADirectoryWithoutLinks) {
  check_crashes(kOther, "fail@link:EPERM", {}, write_new, kOther + kNew);
}

TEST(StagedDirectoryCrashTest, Replacing) { check_crashes(kOld, "", replacing(), write_new, kOther + kNew); }

TEST(StagedDirectoryCrashTest, ReplacingWithoutExchange) {
  check_crashes(kOld, "fail@exchange:EINVAL", replacing(), write_new, kOther + kNew);
}

TEST(StagedDirectoryCrashTest, ReplacingWithoutLinks) {
  check_crashes(kOld, "fail@link:EPERM", replacing(), write_new, kOther + kNew);
}

TEST(StagedDirectoryCrashTest, ReplacingASingleFile) {
  const auto write = [](const fs::path& target, StagedDirectory::Options options) {
    StagedDirectory out(target, std::move(options));
    add(out, "index", "new index");
    out.commit();
  };
  check_crashes(kOther + Tree{{"index", "old index"}}, "", replacing(), write,
                kOther + Tree{{"index", "new index"}});
}

}  // namespace
}  // namespace accel
