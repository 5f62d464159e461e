#include "ckpt/store/resume_point.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <span>

#include "base/error.hpp"
#include "base/metadata_limit.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/run_state.hpp"
#include "helpers.hpp"

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
    write_file(directory / "model/data.distcp", "shard");
    RunState state;
    state.step = step;
    state.epoch = 0;
    state.world_size = 2;
    write_file(directory / kRunStateName, encode_run_state(state));
    seal(directory, step);
    return directory;
  }

  /// Writes the manifest of what is in `directory`.
  static void seal(const fs::path& directory, std::int64_t step, int world_size = 2) {
    Manifest manifest;
    manifest.step = step;
    manifest.world_size = world_size;
    for (const char* name : {"model/data", "model/data.distcp", kRunStateName}) {
      const std::string text = testing::read_file(directory / name);
      manifest.files[name] = {text.size(), crc32(std::as_bytes(std::span(text)))};
    }
    write_file(directory / kManifestName, encode_manifest(manifest));
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

TEST_F(ResumePointTest, SmallFilesHaveTheContentsThatWereSaved) {
  make(10);
  write_file(make(20) / "model/data", "12354");
  const fs::path state = make(30) / kRunStateName;
  std::string text = testing::read_file(state);
  ++text[text.find("\"seed\": ") + 8];
  write_file(state, text);
  // The values of tensors are not read here.
  write_file(make(15) / "model/data.distcp", "sharp");
  EXPECT_EQ(newest_whole(checkpoints_).step, 15);
  EXPECT_THAT(skipped(), ElementsAre(HasSubstr("30: 'trainer_state.json' is not the file that was saved"),
                                     HasSubstr("20: 'model/data' is not the file that was saved")));
  EXPECT_EQ(newest_whole(checkpoints_, 15).step, 10);
}

TEST_F(ResumePointTest, FilesThatContradictEachOtherAreNotWhole) {
  const auto copy = [&](int from, int to) {
    fs::copy_file(checkpoints_.path_of(from) / kRunStateName, checkpoints_.path_of(to) / kRunStateName,
                  fs::copy_options::overwrite_existing);
  };
  make(10);
  make(20);
  copy(10, 20);
  seal(checkpoints_.path_of(20), 20);
  seal(make(30), 30, 4);
  write_file(make(40) / kRunStateName, R"({"version": 2, "step": 40})");
  seal(checkpoints_.path_of(40), 40);
  EXPECT_EQ(newest_whole(checkpoints_).step, 10);
  EXPECT_THAT(skipped(),
              ElementsAre(HasSubstr("trainer_state.json' cannot be read"),
                          "30: its trainer_state.json is of 2 ranks, and accel_manifest.json says 4",
                          "20: its trainer_state.json is of step 10"));
}

TEST_F(ResumePointTest, AChangedByteOfAnyFileIsDamage) {
  const fs::path directory = make(10);
  EXPECT_EQ(why_damaged(directory), std::nullopt);
  for (const char* name : {"model/data", "model/data.distcp", kRunStateName}) {
    const std::string text = testing::read_file(directory / name);
    for (std::size_t i = 0; i < text.size(); i += 1 + text.size() / 40) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ 0x10);
      write_file(directory / name, changed);
      EXPECT_THAT(why_damaged(directory).value_or(""), HasSubstr(name)) << i;
    }
    write_file(directory / name, text);
  }
  fs::remove(directory / "model/data");
  EXPECT_EQ(why_damaged(directory), "'model/data' is missing");
}

TEST_F(ResumePointTest, WhatDoesNotFitIntoTheLimitOfMetadataIsNotDamage) {
  make(10);
  make(20);
  ::setenv(kMetadataLimitVariable, "200", 1);
  const std::string said = testing::error_of(ErrorKind::kUsage, [&] { (void)newest_whole(checkpoints_); });
  ::unsetenv(kMetadataLimitVariable);
  EXPECT_THAT(said, HasSubstr("checkpoint_20/accel_manifest.json': "));
  EXPECT_THAT(said, HasSubstr("metadata may take 200 B (ACCEL_MAX_METADATA)"));
  EXPECT_EQ(newest_whole(checkpoints_).step, 20);
}

TEST_F(ResumePointTest, AManifestThatCannotBeReadIsNamedWithItsFile) {
  make(10);
  make(20);
  const auto said = [&] {
    return testing::error_of(ErrorKind::kUsage, [&] { (void)newest_whole(checkpoints_); });
  };
  const fs::path manifest = checkpoints_.path_of(20) / kManifestName;
  // It has no blocks on the disk, and none of it is read.
  fs::resize_file(manifest, std::uintmax_t{1} << 30);
  EXPECT_THAT(said(), HasSubstr("checkpoint_20/accel_manifest.json': "));
  write_file(manifest, R"({"version": 2})");
  EXPECT_THAT(said(), HasSubstr("checkpoint_20/accel_manifest.json': is of version 2"));
}

TEST_F(ResumePointTest, WhatIsSetAsideIsKept) {
  make(10);
  const fs::path first = checkpoints_.set_aside(10, kDamaged);
  EXPECT_EQ(first.filename(), "checkpoint_10.damaged");
  make(10);
  EXPECT_EQ(checkpoints_.set_aside(10, kDamaged).filename(), "checkpoint_10.damaged-2");
  EXPECT_TRUE(fs::exists(first / "model/data"));
  EXPECT_THAT(checkpoints_.steps(), ElementsAre());
  checkpoints_.sweep();
  EXPECT_TRUE(fs::exists(first / "model/data"));
}

}  // namespace
}  // namespace accel::ckpt
