#include "ckpt/store/run_checkpoints.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files/fault.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/run_state.hpp"
#include "needs_faults.hpp"
#include "temp_dir.hpp"

namespace accel::ckpt {
namespace {

using testing::names_in;
using testing::TempDir;
using testing::write_file;

void save(RunCheckpoints& store, std::int64_t step) {
  store.begin(step);
  std::filesystem::create_directory(store.incomplete_path_of(step) / "model");
  for (const char* name : {"model/data", kManifestName, kRunStateName})
    write_file(store.incomplete_path_of(step) / name, "x");
  store.commit(step);
}

TEST(RunCheckpointsTest, ACheckpointAppearsAtCommit) {
  const TempDir dir;
  RunCheckpoints store(dir / "checkpoints");
  store.begin(5);
  EXPECT_TRUE(store.steps().empty());
  EXPECT_EQ(names_in(dir / "checkpoints"), std::vector<std::string>{"checkpoint_5.incomplete"});
  store.commit(5);
  EXPECT_EQ(store.steps(), std::vector<std::int64_t>{5});
  EXPECT_EQ(names_in(dir / "checkpoints"), std::vector<std::string>{"checkpoint_5"});
}

TEST(RunCheckpointsTest, ANameThatACheckpointWillNeedIsFound) {
  const TempDir dir;
  RunCheckpoints store(dir.path());
  save(store, 5);
  save(store, 9);
  write_file(dir / "checkpoint_3", "");
  write_file(dir / "checkpoint_x", "");
  write_file(dir / "checkpoint_7.incomplete", "");
  EXPECT_EQ(store.taken_name(3), std::nullopt);
  EXPECT_EQ(store.taken_name(2), "checkpoint_3");
  std::filesystem::create_symlink("nowhere", dir / "checkpoint_7");
  EXPECT_EQ(store.taken_name(5), "checkpoint_7");
  EXPECT_THROW(store.begin(7), Error);
  // A file or a link under the name of an unfinished save is in nobody's way.
  std::filesystem::create_symlink("nowhere", dir / "checkpoint_8.incomplete");
  store.sweep();
  std::filesystem::create_symlink("nowhere", dir / "checkpoint_8.incomplete");
  save(store, 8);
  EXPECT_EQ(store.steps(), (std::vector<std::int64_t>{5, 8, 9}));
}

TEST(RunCheckpointsTest, StepsSortAsNumbersAndIgnoreTheRest) {
  const TempDir dir;
  RunCheckpoints store(dir.path());
  for (const std::int64_t step : {100, 20, 3}) save(store, step);
  std::filesystem::create_directory(dir / "checkpoint_x");
  std::filesystem::create_directory(dir / "checkpoint_7.incomplete");
  write_file(dir / "checkpoint_8", "a file");
  EXPECT_EQ(store.steps(), (std::vector<std::int64_t>{3, 20, 100}));
}

TEST(RunCheckpointsTest, TheFirstNameIsOfWhatSweepKeeps) {
  const TempDir dir;
  RunCheckpoints store(dir / "checkpoints");
  EXPECT_EQ(store.first_name(), std::nullopt);
  store.begin(1);
  std::filesystem::create_directory(dir / "checkpoints/checkpoint_2.deleting");
  write_file(dir / "checkpoints/notes", "");
  EXPECT_EQ(store.first_name(), std::nullopt);
  write_file(dir / "checkpoints/checkpoint_8", "a file");
  save(store, 9);
  EXPECT_EQ(store.first_name(), "checkpoint_8");
}

TEST(RunCheckpointsTest, PruneKeepsTheNewest) {
  const TempDir dir;
  RunCheckpoints store(dir.path());
  for (const std::int64_t step : {1, 2, 10}) save(store, step);
  store.prune(0);
  EXPECT_EQ(store.steps().size(), 3u);
  store.prune(2);
  EXPECT_EQ(store.steps(), (std::vector<std::int64_t>{2, 10}));
}

TEST(RunCheckpointsTest, PruneLeavesOneMoreIfItIsAsked) {
  const TempDir dir;
  RunCheckpoints store(dir.path());
  for (const std::int64_t step : {1, 2, 3, 4, 5}) save(store, step);
  store.prune(2, 2);
  EXPECT_EQ(store.steps(), (std::vector<std::int64_t>{2, 4, 5}));
  store.prune(2, 5);
  EXPECT_EQ(store.steps(), (std::vector<std::int64_t>{4, 5}));
  store.prune(1, 3);
  EXPECT_EQ(store.steps(), (std::vector<std::int64_t>{5}));
}

TEST(RunCheckpointsTest, PruneLeavesWhatNoTrainingWrote) {
  const TempDir dir;
  RunCheckpoints store(dir.path());
  for (const std::int64_t step : {1, 2, 3, 4, 5}) save(store, step);
  std::filesystem::remove(dir / "checkpoint_1" / kManifestName);
  std::filesystem::remove(dir / "checkpoint_2" / kRunStateName);
  std::filesystem::remove(dir / "checkpoint_5" / kManifestName);
  std::filesystem::create_directory(dir / "checkpoint_4.discarded");
  ::testing::internal::CaptureStderr();
  store.prune(1);
  store.prune(1);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"checkpoint_1", "checkpoint_2", "checkpoint_4",
                                                            "checkpoint_4.discarded", "checkpoint_5"}));
  for (const char* name : {"checkpoint_1", "checkpoint_2"}) {
    const std::size_t first = said.find(std::string(name) + "' is not a checkpoint of a training, and stays");
    EXPECT_NE(first, std::string::npos) << said;
    EXPECT_EQ(said.find(name, first + 1), std::string::npos) << said;
  }
  EXPECT_EQ(said.find("checkpoint_5"), std::string::npos) << said;
}

TEST(RunCheckpointsTest, AnOldCheckpointThatCannotBeRemovedIsAWarning) {
  ACCEL_NEEDS_FAULTS();
  for (const char* fault : {"fail@rename:EACCES", "fail@unlink:EACCES", "fail@rmdir:EIO"}) {
    const TempDir dir;
    RunCheckpoints store(dir.path());
    for (const std::int64_t step : {1, 2, 3}) save(store, step);
    {
      const fault::Scope scope(fault);
      EXPECT_NO_THROW(store.prune(1)) << fault;
    }
    EXPECT_EQ(store.steps().back(), 3) << fault;
    // What stood in the way is gone.
    EXPECT_NO_THROW(store.prune(1)) << fault;
    store.sweep();
    EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"checkpoint_3"}) << fault;
  }
}

TEST(RunCheckpointsTest, LeftoversThatCannotBeRemovedAreAWarning) {
  ACCEL_NEEDS_FAULTS();
  const TempDir dir;
  RunCheckpoints store(dir.path());
  store.begin(2);
  {
    const fault::Scope scope("fail@rmdir:EACCES");
    EXPECT_NO_THROW(store.sweep());
  }
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"checkpoint_2.incomplete"});
  store.sweep();
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(RunCheckpointsTest, AFailedSaveIsDiscarded) {
  const TempDir dir;
  RunCheckpoints store(dir.path());
  save(store, 1);
  store.begin(2);
  write_file(store.incomplete_path_of(2) / "half", "x");
  store.discard(2);
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"checkpoint_1"});
}

TEST(RunCheckpointsTest, SweepRemovesLeftoversAlone) {
  const TempDir dir;
  RunCheckpoints store(dir.path());
  save(store, 1);
  store.begin(2);
  std::filesystem::create_directories(dir / "checkpoint_0.deleting/model");
  std::filesystem::create_directory(dir / "mine.incomplete");
  store.sweep();
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"checkpoint_1", "mine.incomplete"}));
}

TEST(RunCheckpointsTest, BeginRefusesAnExistingCheckpointAndClearsAnIncompleteOne) {
  const TempDir dir;
  RunCheckpoints store(dir.path());
  save(store, 1);
  EXPECT_THROW(store.begin(1), Error);
  store.begin(2);
  write_file(store.incomplete_path_of(2) / "stale", "x");
  store.begin(2);
  EXPECT_TRUE(std::filesystem::is_empty(store.incomplete_path_of(2)));
}

}  // namespace
}  // namespace accel::ckpt
