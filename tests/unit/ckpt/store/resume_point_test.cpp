#include "ckpt/store/resume_point.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/run_state.hpp"
#include "temp_dir.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::write_file;

class ResumePointTest : public ::testing::Test {
 protected:
  /// A checkpoint with two files and their manifest.
  fs::path make(std::int64_t step) {
    fs::path directory = checkpoints_.path_of(step);
    fs::create_directories(directory / "model");
    write_file(directory / "model/data", "12345");
    write_file(directory / kRunStateName, "{}");
    Manifest manifest;
    manifest.step = step;
    manifest.files["model/data"] = {5, 0};
    manifest.files[kRunStateName] = {2, 0};
    write_file(directory / kManifestName, encode_manifest(manifest));
    return directory;
  }

  std::vector<std::string> skipped() const {
    std::vector<std::string> texts;
    for (const BrokenCheckpoint& one : newest_whole(checkpoints_).skipped)
      texts.push_back(std::to_string(one.step) + ": " + one.why);
    return texts;
  }

  testing::TempDir dir_;
  RunCheckpoints checkpoints_{dir_ / "checkpoints"};
};

TEST_F(ResumePointTest, TheNewestByNumberIsTaken) {
  EXPECT_FALSE(newest_whole(checkpoints_).step.has_value());
  make(5);
  make(20);
  make(100);
  fs::create_directories(checkpoints_.incomplete_path_of(120));
  fs::create_directories(dir_ / "checkpoints/checkpoint_200.damaged");
  EXPECT_EQ(newest_whole(checkpoints_).step, 100);
  EXPECT_THAT(skipped(), ElementsAre());
}

TEST_F(ResumePointTest, WhatIsNotWholeIsPassedOverWithItsReason) {
  make(10);
  fs::remove(make(20) / "model/data");
  write_file(make(30) / "model/data", "123456");
  fs::remove(make(40) / kManifestName);
  write_file(make(50) / kManifestName, "{");
  fs::rename(make(60), checkpoints_.path_of(70));
  const fs::path folder = make(80) / "model/data";
  fs::remove(folder);
  fs::create_directory(folder);
  EXPECT_EQ(newest_whole(checkpoints_).step, 10);
  EXPECT_THAT(
      skipped(),
      ElementsAre("80: 'model/data' is not a regular file", "70: its manifest is of step 60",
                  HasSubstr("50: 'accel_manifest.json' cannot be read"), "40: it has no accel_manifest.json",
                  "30: 'model/data' has 6 bytes, and accel_manifest.json says 5",
                  "20: 'model/data' is missing"));
}

TEST_F(ResumePointTest, WhatIsSetAsideIsKept) {
  make(10);
  const fs::path first = checkpoints_.set_aside(10);
  EXPECT_EQ(first.filename(), "checkpoint_10.damaged");
  make(10);
  EXPECT_EQ(checkpoints_.set_aside(10).filename(), "checkpoint_10.damaged-2");
  EXPECT_TRUE(fs::exists(first / "model/data"));
  EXPECT_THAT(checkpoints_.steps(), ElementsAre());
  checkpoints_.sweep();
  EXPECT_TRUE(fs::exists(first / "model/data"));
}

}  // namespace
}  // namespace accel::ckpt
