#include "base/files/directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/crash_matrix.hpp"
#include "base/files/leftover.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;
using fault::Scope;
using testing::read_file;
using testing::TempDir;
using testing::Tree;
using testing::tree_of;
using testing::write_file;

TEST(DirectoryTest, RenamesOnlyToWhatIsFree) {
  ACCEL_NEEDS_FAULTS();
  for (const char* plan : {"count", "fail@rename-new:EINVAL"}) {
    const TempDir dir;
    const Scope scope(plan);
    write_file(dir / "a", "a");
    write_file(dir / "b", "b");
    EXPECT_FALSE(rename_to_free(dir / "a", dir / "b"));
    EXPECT_TRUE(rename_to_free(dir / "a", dir / "c"));
    EXPECT_EQ(tree_of(dir.path()), (Tree{{"b", "b"}, {"c", "a"}}));
    EXPECT_THROW((void)rename_to_free(dir / "none", dir / "d"), Error);
  }
}

TEST(DirectoryTest, ExchangesEntriesAndSaysWhereItCannot) {
  ACCEL_NEEDS_FAULTS();
  const TempDir dir;
  write_file(dir / "a", "a");
  make_directory(dir / "b");
  EXPECT_TRUE(exchange_entries(dir / "a", dir / "b"));
  EXPECT_EQ(read_file(dir / "b"), "a");
  EXPECT_THROW((void)exchange_entries(dir / "a", dir / "none"), Error);
  const Scope scope("fail@exchange:EINVAL");
  EXPECT_FALSE(exchange_entries(dir / "a", dir / "b"));
}

TEST(DirectoryTest, Links) {
  ACCEL_NEEDS_FAULTS();
  const TempDir dir;
  write_file(dir / "a", "a");
  EXPECT_EQ(link_entry(dir / "a", dir / "b"), LinkResult::kLinked);
  EXPECT_EQ(link_entry(dir / "a", dir / "b"), LinkResult::kTaken);
  EXPECT_THROW((void)link_entry(dir / "none", dir / "c"), Error);
  const Scope scope("fail@link:EPERM");
  EXPECT_EQ(link_entry(dir / "a", dir / "c"), LinkResult::kNotSupported);
}

TEST(DirectoryTest, RemovesATreeButNotWhatItsLinksPointTo) {
  const TempDir dir;
  fs::create_directories(dir / "tree/sub");
  fs::create_directory(dir / "kept");
  write_file(dir / "kept/x", "x");
  write_file(dir / "tree/sub/y", "y");
  fs::create_directory_symlink(dir / "kept", dir / "tree/link");
  remove_tree(dir / "tree");
  remove_tree(dir / "tree");
  EXPECT_EQ(tree_of(dir.path()), (Tree{{"kept/", ""}, {"kept/x", "x"}}));
}

TEST(DirectoryTest, DiscardingIsAllOrNothingUnderTheName) {
  ACCEL_NEEDS_FAULTS();
  testing::CrashScenario scenario;
  scenario.prepare = [](const fs::path& dir) {
    fs::create_directories(dir / "tree/sub");
    write_file(dir / "tree/sub/x", "x");
    write_file(dir / "tree/y", "y");
  };
  scenario.work = [](const fs::path& dir) { discard_tree(dir / "tree"); };
  testing::run_crash_matrix(scenario, [](const testing::CrashRun& run) {
    const Tree whole = {{"sub/", ""}, {"sub/x", "x"}, {"y", "y"}};
    EXPECT_EQ(tree_of(run.dir / "tree"), fs::exists(run.dir / "tree") ? whole : Tree{});
    sweep_leftovers(run.dir / "tree");
    EXPECT_EQ(testing::names_in(run.dir).size(), fs::exists(run.dir / "tree") ? 1u : 0u);
  });
}

TEST(DirectoryTest, LinksATreeBesideWhatIsThere) {
  ACCEL_NEEDS_FAULTS();
  for (const char* plan : {"count", "fail@link:EPERM"}) {
    const TempDir dir;
    fs::create_directories(dir / "from/sub");
    write_file(dir / "from/a", "old a");
    write_file(dir / "from/stale", "s");
    write_file(dir / "from/sub/x", "x");
    fs::permissions(dir / "from/sub/x", fs::perms(0640));
    fs::create_symlink("a", dir / "from/link");
    fs::create_directory(dir / "to");
    write_file(dir / "to/a", "new a");
    const Scope scope(plan);
    link_tree(dir / "from", dir / "to", {"stale"});
    EXPECT_EQ(tree_of(dir / "to"), (Tree{{"a", "new a"}, {"link", "new a"}, {"sub/", ""}, {"sub/x", "x"}}));
    EXPECT_EQ(fs::status(dir / "to/sub/x").permissions(), fs::perms(0640));
    EXPECT_TRUE(fs::is_symlink(dir / "to/link"));
  }
}

TEST(DirectoryTest, CopiesLargeFilesWhereThereAreNoLinks) {
  ACCEL_NEEDS_FAULTS();
  const TempDir dir;
  std::string text(40'000'000, 'x');
  for (std::size_t i = 0; i < text.size(); i += 4096) text[i] = static_cast<char>(i >> 12);
  for (const char* plan : {"fail@link:EPERM", "fail@link:EPERM,fail@copy:EXDEV"}) {
    fs::create_directory(dir / "from");
    fs::create_directory(dir / "to");
    write_file(dir / "from/big", text);
    const Scope scope(plan);
    link_tree(dir / "from", dir / "to", {});
    EXPECT_TRUE(read_file(dir / "to/big") == text) << plan;
    remove_tree(dir / "from");
    remove_tree(dir / "to");
  }
}

TEST(DirectoryTest, NamesAreSorted) {
  const TempDir dir;
  for (const char* name : {"c", "a", "b"}) write_file(dir / name, "");
  EXPECT_EQ(accel::names_in(dir.path()), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(entries_in(dir.path()), (std::vector<fs::path>{dir / "a", dir / "b", dir / "c"}));
  EXPECT_THROW((void)accel::names_in(dir / "none"), Error);
}

TEST(DirectoryTest, FilesAreSortedAndOnlyFiles) {
  using ::testing::ElementsAre;
  const TempDir dir;
  for (const char* name : {"b.bin", "a.bin", "a.pt", ".bin", "a"}) write_file(dir / name, "");
  fs::create_directory(dir / "d.bin");
  EXPECT_THAT(files_in(dir.path(), "", ".bin"), ElementsAre(".bin", "a.bin", "b.bin"));
  EXPECT_THAT(files_in(dir.path(), "a", ""), ElementsAre("a", "a.bin", "a.pt"));
  EXPECT_THAT(files_in(dir.path(), "a.b", ".bin"), ElementsAre());
  EXPECT_THROW((void)files_in(dir / "gone", "", ""), Error);
}

}  // namespace
}  // namespace accel
