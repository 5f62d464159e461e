#include "base/files/leftover.hpp"

#include <gtest/gtest.h>

#include "base/crash_matrix.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;
using testing::names_in;
using testing::TempDir;
using testing::Tree;
using testing::tree_of;
using testing::write_file;

using State = LeftoverLock::State;
using Names = std::vector<std::string>;

TEST(LeftoverTest, NamesAreUniqueAndRecognised) {
  const fs::path target = "dir/model.bin";
  EXPECT_NE(leftover_name(target, LeftoverKind::kFile), leftover_name(target, LeftoverKind::kFile));
  for (const LeftoverKind kind :
       {LeftoverKind::kFile, LeftoverKind::kBeside, LeftoverKind::kInside, LeftoverKind::kDeleting}) {
    const std::string name = leftover_name(target, kind).filename().string();
    EXPECT_TRUE(is_leftover_name(name, "model.bin", kind)) << name;
    EXPECT_TRUE(is_leftover_name(name)) << name;
    EXPECT_FALSE(is_leftover_name(name + "x")) << name;
    EXPECT_FALSE(is_leftover_name(name + "x", "model.bin", kind)) << name;
    EXPECT_FALSE(is_leftover_name(name.substr(0, name.rfind('-')), "model.bin", kind)) << name;
  }
  EXPECT_EQ(leftover_name(target, LeftoverKind::kInside).parent_path(), target);
  EXPECT_EQ(leftover_name(target, LeftoverKind::kBeside).parent_path(), "dir");
}

TEST(LeftoverTest, LongNamesStayWithinWhatFileSystemsTake) {
  const std::string name(250, 'n');
  const fs::path path = leftover_name(name, LeftoverKind::kBeside);
  const std::string beside = path.filename().string();
  EXPECT_LE(beside.size(), 255u);
  EXPECT_TRUE(is_leftover_name(beside, name, LeftoverKind::kBeside));
  EXPECT_FALSE(is_leftover_name(beside, name + "n", LeftoverKind::kBeside));
  EXPECT_TRUE(is_leftover_name(deleting_name(path).filename().string(), name, LeftoverKind::kDeleting));
}

TEST(LeftoverTest, ALockIsTakenOnceAndKnowsWhenItsFileIsGone) {
  const TempDir dir;
  write_file(dir / "f", "");
  std::optional<LeftoverLock> first(dir / "f");
  EXPECT_EQ(first->state(), State::kHeld);
  EXPECT_EQ(LeftoverLock(dir / "f").state(), State::kTaken);
  first.reset();
  EXPECT_EQ(LeftoverLock(dir / "f").state(), State::kHeld);
  EXPECT_EQ(LeftoverLock(dir.path()).state(), State::kHeld);
  EXPECT_EQ(LeftoverLock(dir / "none").state(), State::kGone);
}

TEST(LeftoverTest, SweepsWhatIsAbandonedAndNothingElse) {
  const TempDir dir;
  const fs::path out = dir / "out";
  const fs::path alive = leftover_name(out, LeftoverKind::kBeside);
  fs::create_directory(alive);
  const LeftoverLock lock(alive);
  for (const LeftoverKind kind : {LeftoverKind::kBeside, LeftoverKind::kDeleting}) {
    const fs::path dead = leftover_name(out, kind);
    fs::create_directories(dead / "sub");
    write_file(dead / "sub/x", "x");
  }
  write_file(leftover_name(out, LeftoverKind::kFile), "x");
  const fs::path of_another = leftover_name(dir / "out2", LeftoverKind::kBeside);
  fs::create_directory(of_another);
  write_file(dir / "out.incomplete-mine", "");
  sweep_leftovers(out);
  Names kept = {alive.filename(), of_another.filename(), "out.incomplete-mine"};
  std::sort(kept.begin(), kept.end());
  EXPECT_EQ(names_in(dir.path()), kept);
}

TEST(LeftoverTest, SweepsThroughASymbolicLinkAndBehindASlash) {
  const TempDir dir;
  fs::create_directory(dir / "real");
  fs::create_directory_symlink("real", dir / "out");
  for (const char* name : {"out", "real/", "gone/"}) {
    const fs::path real = dir / (std::string_view(name) == "gone/" ? "gone" : "real");
    fs::create_directory(leftover_name(real, LeftoverKind::kBeside));
    if (fs::exists(real)) fs::create_directory(leftover_name(real, LeftoverKind::kInside));
    sweep_leftovers(dir / name);
    EXPECT_EQ(tree_of(dir.path()), (Tree{{"out/", ""}, {"real/", ""}})) << name;
  }
}

TEST(LeftoverTest, KeepsWorkOfAnotherHostForADay) {
  const TempDir dir;
  const fs::path foreign = dir / "out.incomplete-00000000-17-0";
  fs::create_directory(foreign);
  write_file(foreign / "x", "x");
  const auto age = [&](int hours) {
    const auto then = fs::file_time_type::clock::now() - std::chrono::hours(hours);
    fs::last_write_time(foreign / "x", then);
    fs::last_write_time(foreign, then);
  };
  age(23);
  sweep_leftovers(dir / "out");
  EXPECT_TRUE(fs::exists(foreign));
  age(25);
  sweep_leftovers(dir / "out");
  EXPECT_FALSE(fs::exists(foreign));
}

TEST(LeftoverTest, AHalfDoneExchangeGivesTheOldDirectoryItsName) {
  const TempDir dir;
  const fs::path staged = leftover_name(dir / "out", LeftoverKind::kBeside);
  fs::create_directory(staged);
  write_file(staged / "x", "new");
  fs::create_directory(deleting_name(staged));
  write_file(deleting_name(staged) / "x", "old");
  sweep_leftovers(dir / "out");
  EXPECT_EQ(tree_of(dir.path()), (Tree{{"out/", ""}, {"out/x", "old"}}));
}

TEST(LeftoverTest, UndoesLinksUnlessAllAreThere) {
  const TempDir dir;
  const auto link_both = [&] {
    for (const char* name : {"a", "b"}) {
      std::error_code ignored;
      fs::create_hard_link(dir / "staging" / name, dir / "out" / name, ignored);
    }
  };
  fs::create_directory(dir / "staging");
  fs::create_directory(dir / "out");
  write_file(dir / "staging/a", "same");
  write_file(dir / "staging/b", "same");
  write_file(dir / "out/c", "theirs");
  link_both();
  undo_links(dir / "staging", dir / "out", true);
  EXPECT_EQ(names_in(dir / "out"), (Names{"a", "b", "c"}));
  fs::remove(dir / "out/b");
  write_file(dir / "out/b", "same");  // The same content, but not the same file.
  undo_links(dir / "staging", dir / "out", true);
  EXPECT_EQ(names_in(dir / "out"), (Names{"b", "c"}));
  fs::remove(dir / "out/b");
  link_both();
  undo_links(dir / "staging", dir / "out", false);
  EXPECT_EQ(names_in(dir / "out"), Names{"c"});
}

}  // namespace
}  // namespace accel
