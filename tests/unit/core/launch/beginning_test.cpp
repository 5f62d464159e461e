#include "core/launch/beginning.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <span>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/text.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/run_state.hpp"
#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BeginningTest : public ::testing::Test {
 protected:
  BeginningTest() {
    loaded_.config.training.emplace();
    loaded_.config.training->output_dir = out_;
    loaded_.config.training->checkpoint.every = 5;
    loaded_.config.training->checkpoint.resume = "none";
    std::filesystem::create_directories(out_);
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

  [[nodiscard]] std::filesystem::path path(std::int64_t step) const {
    return out_ / fmt::format("checkpoints/checkpoint_{}", step);
  }

  /// Writes a whole checkpoint.
  static void make_in(const std::filesystem::path& directory, std::int64_t step) {
    ckpt::RunState state;
    state.step = step;
    state.world_size = 1;
    make_in(directory, state);
  }
  static void make_in(const std::filesystem::path& directory, const ckpt::RunState& state) {
    std::filesystem::create_directories(directory);
    write_file(directory / ckpt::kRunStateName, ckpt::encode_run_state(state));
    write_file(directory / "a.distcp", "12345");
    ckpt::Manifest manifest;
    manifest.step = state.step;
    manifest.world_size = 1;
    for (const char* name : {ckpt::kRunStateName, "a.distcp"}) {
      const std::string text = accel::testing::read_file(directory / name);
      manifest.files[name] = {text.size(), ckpt::crc32(std::as_bytes(std::span(text)))};
    }
    write_file(directory / ckpt::kManifestName, ckpt::encode_manifest(manifest));
  }
  void make(std::int64_t step) const { make_in(path(step), step); }
  void make_of(const ckpt::RunState& state) const { make_in(path(state.step), state); }

  /// The step from which a run whose training.checkpoint.resume is `from` begins.
  std::int64_t begin_from(const std::filesystem::path& from, BeginningOptions options = {}) {
    loaded_.config.training->checkpoint.resume = from.string();
    loaded_.config.training->max_steps = 100;
    return find_beginning(loaded_, options).step;
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

TEST_F(BeginningTest, ARunThatHasStoppedEarlyIsFinished) {
  const auto begin = [&](std::int64_t patience, const char* metric) {
    config::TrainingConfig& training = *loaded_.config.training;
    training.early_stopping.patience = patience;
    training.best_metric = metric;
    training.max_steps = 100;
    training.checkpoint.resume = "auto";
    return find_beginning(loaded_).is_finished;
  };
  ckpt::RunState state;
  state.step = 20;
  state.world_size = 1;
  state.early_stopping = ckpt::EarlyStoppingState{"eval_accuracy", 0.5, 3};
  make_of(state);
  EXPECT_TRUE(begin(3, "accuracy"));
  EXPECT_TRUE(begin(2, "accuracy"));
  EXPECT_FALSE(begin(4, "accuracy"));
  EXPECT_FALSE(begin(3, "loss"));
  EXPECT_FALSE(begin(0, "accuracy"));
}

TEST_F(BeginningTest, RefusesNamesThatAreTaken) {
  loaded_.config.training->checkpoint.resume = "auto";
  loaded_.config.training->checkpoint.exports_safetensors = true;
  loaded_.config.training->profile.emplace();
  loaded_.config.training->tensorboard = true;
  std::filesystem::create_directories(out_ / "checkpoints");
  write_file(out_ / "metrics.jsonl", "{}");
  const auto refused = [&](const char* name) {
    EXPECT_THAT(error_of_beginning(),
                AllOf(HasSubstr(name), HasSubstr(", and the run writes a directory of this name")));
    EXPECT_TRUE(std::filesystem::exists(out_ / "metrics.jsonl"));  // Nothing has changed.
    std::filesystem::remove(out_ / name);
  };
  write_file(out_ / "checkpoints/checkpoint_30", "");
  refused("checkpoints/checkpoint_30");
  std::filesystem::create_symlink("nowhere", out_ / "checkpoints/checkpoint_30");
  EXPECT_THAT(error_of_beginning(), HasSubstr("checkpoint_30' is a link to nowhere"));
  refused("checkpoints/checkpoint_30");
  for (const char* name : {"export", "profile", "tensorboard"}) {
    write_file(out_ / name, "");
    refused(name);
  }
  std::filesystem::remove(out_ / "checkpoints");
  write_file(out_ / "checkpoints", "");
  refused("checkpoints");
  EXPECT_EQ(error_of_beginning(), "no error");
}

TEST_F(BeginningTest, ADamagedCheckpointIsRenamedIfThereIsAnOlderOne) {
  config::TrainingConfig& training = *loaded_.config.training;
  std::vector<std::string> told;
  const auto check = [&](const config::TrainingConfig& of) {
    told.clear();
    return set_damaged_aside(of, [&told](const std::string& text) { told.push_back(text); });
  };
  make(10);
  make(20);
  EXPECT_EQ(check(training).text, "");
  training.checkpoint.resume_from = std::filesystem::canonical(path(20));
  // What a rank found was not on the disk.
  EXPECT_EQ(check(training).text, "");
  const std::string size = format_bytes(std::filesystem::file_size(path(20) / ckpt::kRunStateName) + 5);
  EXPECT_THAT(told, ElementsAre(fmt::format("checking '{}' ({}), which a rank found corrupt",
                                            training.checkpoint.resume_from.string(), size),
                                "", ""));

  write_file(path(20) / "a.distcp", "12346");
  // A check that is interrupted has found nothing, and ends.
  {
    const InterruptGuard guard;
    ::raise(SIGTERM);
    EXPECT_THROW((void)check(training), Error);
  }
  EXPECT_TRUE(std::filesystem::exists(path(20)));

  // Nor is one renamed that was named: the next launch would begin with another one.
  training.checkpoint.resume = path(20);
  Damage damage = check(training);
  EXPECT_FALSE(damage.is_renamed);
  EXPECT_THAT(damage.text, HasSubstr("it keeps its name, since training.checkpoint.resume names it"));
  EXPECT_TRUE(std::filesystem::exists(path(20)));
  training.checkpoint.resume = "auto";

  damage = check(training);
  EXPECT_TRUE(damage.is_renamed);
  EXPECT_THAT(damage.text,
              AllOf(HasSubstr("checkpoint_20' is damaged: 'a.distcp' is not the file that was saved"),
                    HasSubstr("the run goes on from 'checkpoint_10' when it starts again")));
  EXPECT_FALSE(std::filesystem::exists(path(20)));

  // The last one keeps its name: a run that begins anew would hide it.
  training.checkpoint.resume_from = std::filesystem::canonical(path(10));
  write_file(path(10) / "a.distcp", "12346");
  damage = check(training);
  EXPECT_FALSE(damage.is_renamed);
  EXPECT_THAT(damage.text, HasSubstr("it keeps its name"));
  EXPECT_TRUE(std::filesystem::exists(path(10)));

  // So does the checkpoint of another run.
  make(20);
  std::filesystem::rename(path(10), dir_ / "checkpoint_10");
  training.checkpoint.resume_from = std::filesystem::canonical(dir_ / "checkpoint_10");
  damage = check(training);
  EXPECT_FALSE(damage.is_renamed);
  EXPECT_THAT(damage.text, HasSubstr("is damaged"));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "checkpoint_10"));
}

TEST_F(BeginningTest, APathIsTakenOnceAndThenTheNewestCheckpoint) {
  make_in(dir_ / "base", 10);
  EXPECT_EQ(begin_from(dir_ / "base"), 10);
  make(20);
  EXPECT_EQ(begin_from(dir_ / "base/"), 20);
  make_in(dir_ / "other", 10);
  EXPECT_THROW((void)begin_from(dir_ / "other"), Error);
  EXPECT_EQ(begin_from(dir_ / "other", {.is_restart = true}), 20);
  // The newest checkpoint of the run itself.
  EXPECT_EQ(begin_from(path(20)), 20);
  make(30);
  EXPECT_EQ(begin_from(path(20)), 30);
  EXPECT_EQ(begin_from(dir_ / "base"), 30);
  std::filesystem::remove_all(path(20));
  EXPECT_EQ(begin_from(path(20)), 30);
}

TEST_F(BeginningTest, APathThatIsDamagedIsNotReplacedByAnOlderCheckpoint) {
  for (const int step : {10, 20}) make(step);
  const auto refused = [&] {
    try {
      (void)begin_from(path(20));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMissing);
      return error.message() + "; " + error.advice();
    }
    return std::string("no error");
  };
  const std::string state = accel::testing::read_file(path(20) / ckpt::kRunStateName);
  const auto names_both = AllOf(
      HasSubstr(fmt::format("'{}' is not whole: '{}' has 3 bytes", path(20).string(), ckpt::kRunStateName)),
      HasSubstr(fmt::format("'{}': training.checkpoint.resume: auto goes on from it", path(10).string())));
  write_file(path(20) / ckpt::kRunStateName, "bad");
  EXPECT_THAT(refused(), names_both);
  // The same holds for a run that began from it before.
  write_file(path(20) / ckpt::kRunStateName, state);
  EXPECT_EQ(begin_from(path(20)), 20);
  write_file(path(20) / ckpt::kRunStateName, "bad");
  EXPECT_THAT(refused(), names_both);
  EXPECT_TRUE(std::filesystem::exists(path(20)));
  std::filesystem::remove_all(path(10));
  EXPECT_THAT(refused(), HasSubstr("no older one is whole"));
  make(10);
  EXPECT_EQ(begin_from("auto"), 10);
}

TEST_F(BeginningTest, WhereARunBeganIsReadForAPathAlone) {
  write_file(out_ / "began_from.json", "{");
  make(20);
  EXPECT_EQ(begin_from("auto"), 20);
  EXPECT_EQ(begin_from(path(20), {.is_restart = true}), 20);
  EXPECT_THROW((void)begin_from(path(20)), Error);
  std::filesystem::remove_all(out_ / "checkpoints");
  EXPECT_EQ(begin_from("none"), 0);
  EXPECT_FALSE(std::filesystem::exists(out_ / "began_from.json"));
}

TEST_F(BeginningTest, ARunIsRolledBackToAPathOnce) {
  for (const int step : {10, 20, 30}) make(step);
  EXPECT_EQ(begin_from(path(10), {.discards_later = true}), 10);
  EXPECT_FALSE(std::filesystem::exists(path(20)));
  EXPECT_TRUE(std::filesystem::exists(out_ / "checkpoints/checkpoint_30.discarded"));
  make(20);
  EXPECT_EQ(begin_from(path(10), {.discards_later = true}), 20);
  EXPECT_EQ(begin_from(path(10)), 20);
  // To another checkpoint it is rolled back again, and so it is after what is noted was removed.
  make(30);
  EXPECT_EQ(begin_from(path(20), {.discards_later = true}), 20);
  std::filesystem::remove(out_ / "began_from.json");
  make(30);
  EXPECT_EQ(begin_from(path(20), {.discards_later = true}), 20);
  EXPECT_TRUE(std::filesystem::exists(out_ / "checkpoints/checkpoint_30.discarded-3"));
}

TEST_F(BeginningTest, ARollbackThatWasInterruptedIsCompletedByTheNextLaunch) {
  for (const int step : {10, 20}) make(step);
  // The launch has renamed checkpoint_30 and was killed.
  std::filesystem::create_directories(out_ / "checkpoints/checkpoint_30.discarded");
  EXPECT_EQ(begin_from(path(10), {.discards_later = true}), 10);
  EXPECT_FALSE(std::filesystem::exists(path(20)));
}

TEST_F(BeginningTest, APathThatCannotBeTakenDiscardsNothing) {
  for (const int step : {10, 20}) make(step);
  std::filesystem::remove(path(10) / "a.distcp");
  for (const auto& from : {path(10), dir_ / "gone"})
    EXPECT_THROW((void)begin_from(from, {.discards_later = true}), Error);
  EXPECT_TRUE(std::filesystem::exists(path(20)));
}

TEST_F(BeginningTest, ALimitOfMetadataThatIsTooSmallRenamesNothing) {
  for (const int step : {10, 20}) make(step);
  ::setenv("ACCEL_MAX_METADATA", "100", 1);
  EXPECT_THROW((void)begin_from("auto"), Error);
  ::unsetenv("ACCEL_MAX_METADATA");
  EXPECT_EQ(begin_from("auto"), 20);
}

TEST_F(BeginningTest, ARunThatBeginsAnewForgetsWhereAnEarlierOneBegan) {
  make_in(dir_ / "base", 10);
  EXPECT_EQ(begin_from(dir_ / "base"), 10);
  EXPECT_EQ(begin_from("auto"), 0);
  make(20);
  EXPECT_THROW((void)begin_from(dir_ / "base"), Error);
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
