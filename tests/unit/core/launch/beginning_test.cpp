#include "core/launch/beginning.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::HasSubstr;

class BeginningTest : public ::testing::Test {
 protected:
  BeginningTest() {
    loaded_.config.training.emplace();
    loaded_.config.training->output_dir = out_;
    loaded_.config.training->checkpoint.every = 5;
    loaded_.config.training->checkpoint.resume = "none";
  }

  std::string error_of_beginning() {
    try {
      (void)find_beginning(loaded_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.message();
    }
    return "no error";
  }

  TempDir dir_;
  std::filesystem::path out_ = dir_ / "runs/out";
  config::LoadedConfig loaded_;
};

TEST_F(BeginningTest, RefusesCheckpointsOfAnEarlierRun) {
  std::filesystem::create_directories(out_ / "checkpoints/checkpoint_5.incomplete");
  EXPECT_EQ(error_of_beginning(), "no error");
  std::filesystem::create_directories(out_ / "checkpoints/checkpoint_10");
  EXPECT_THAT(error_of_beginning(),
              HasSubstr("holds checkpoints of an earlier run, among them checkpoint_10"));
  loaded_.config.training->checkpoint.every = 0;
  EXPECT_EQ(error_of_beginning(), "no error");
}

TEST_F(BeginningTest, RefusesMetricsOfAnEarlierRun) {
  std::filesystem::create_directories(out_);
  write_file(out_ / "metrics.jsonl", "");
  EXPECT_EQ(error_of_beginning(), "no error");
  write_file(out_ / "metrics.jsonl", "{}");
  EXPECT_THAT(error_of_beginning(), HasSubstr("metrics.jsonl' holds the metrics of an earlier run"));
  std::filesystem::remove(out_ / "metrics.jsonl");
  std::filesystem::create_directory(out_ / "metrics.jsonl");
  EXPECT_THAT(error_of_beginning(), HasSubstr("metrics.jsonl' is not a regular file"));
}

TEST_F(BeginningTest, MetricsWithoutACheckpointAreRenamedAndTheRunBegins) {
  loaded_.config.training->checkpoint.resume = "auto";
  std::filesystem::create_directories(out_);
  write_file(out_ / "metrics.1.jsonl", "older");
  write_file(out_ / "metrics.jsonl", "{}");
  const Beginning beginning = find_beginning(loaded_);
  EXPECT_EQ(beginning.checkpoint, std::filesystem::path());
  EXPECT_FALSE(beginning.is_finished);
  EXPECT_FALSE(std::filesystem::exists(out_ / "metrics.jsonl"));
  EXPECT_EQ(accel::testing::read_file(out_ / "metrics.1.jsonl"), "older");
  EXPECT_EQ(accel::testing::read_file(out_ / "metrics.2.jsonl"), "{}");
}

}  // namespace
}  // namespace accel::launch
