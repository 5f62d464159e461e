#include "ckpt/store/run_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "helpers.hpp"
#include "temp_dir.hpp"

namespace accel::ckpt {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

RunState some_state() {
  RunState state;
  state.step = 7;
  state.optimizer_steps = 6;
  state.parameter_steps = 5;
  state.without_gradient = {"late"};
  state.epoch = 2 + 1.0 / 3;
  state.lr = 1e-3 / 7;
  state.seed = 18'446'744'073'709'551'615U;
  state.world_size = 4;
  state.skipped_in_a_row = 1;
  state.skipped_since_log = 2;
  state.loss_sum_since_log = 4.0 / 3;
  state.steps_since_log = 3;
  state.metrics_since_log = {{"aux", {0.5, 2}}};
  state.samples_trained = 226;
  state.data = {2, 40, 93, 32, false};
  state.settings = {{"training.optimizer.lr", "0.001"}, {kMicroBatchSetting, "8"}};
  state.power_sgd = PowerSgdState{9, {7, 7}};
  // A loss may be negative.
  state.plateau = PlateauState{0.25, -1.5, 3, 2, std::nullopt};
  state.early_stopping = EarlyStoppingState{"eval_wiki_loss", -1.0 / 3, 2};
  state.evaluation = {{"eval_loss", 1.0 / 7}, {"eval_wiki_loss", -1.0 / 3}};
  return state;
}

TEST(RunStateTest, IsReadAsItWasWritten) {
  const TempDir dir;
  write_file(dir / kRunStateName, encode_run_state(some_state()));
  const RunState read = read_run_state(dir / kRunStateName);
  EXPECT_EQ(encode_run_state(read), encode_run_state(some_state()));
  EXPECT_EQ(read.epoch, 2 + 1.0 / 3);
  EXPECT_EQ(read.parameter_steps, 5);
  EXPECT_EQ(read.loss_sum_since_log, 4.0 / 3);
  EXPECT_EQ(read.steps_since_log, 3);
  EXPECT_EQ(read.metrics_since_log.at("aux").sum, 0.5);
  EXPECT_EQ(read.metrics_since_log.at("aux").steps, 2);
  EXPECT_EQ(read.samples_trained, 226);
  EXPECT_EQ(read.seed, 18'446'744'073'709'551'615U);
  EXPECT_EQ(read.power_sgd->iterations, (std::vector<std::int64_t>{7, 7}));
  EXPECT_EQ(read.plateau->scale, 0.25);
  EXPECT_EQ(read.plateau->best, -1.5);
  EXPECT_EQ(read.plateau->num_bad_epochs, 3);
  EXPECT_EQ(read.plateau->cooldown_counter, 2);
  EXPECT_EQ(read.early_stopping->metric, "eval_wiki_loss");
  EXPECT_EQ(read.early_stopping->best, -1.0 / 3);
  EXPECT_EQ(read.early_stopping->patience_counter, 2);
  EXPECT_EQ(read.evaluation, some_state().evaluation);
  EXPECT_FALSE(read.plateau->greedy);
}

// Each bucket of power_sgd counts its iterations, and each key has a setting.
TEST(RunStateTest, WhatIsWrittenIsReadHoweverLongItIs) {
  const TempDir dir;
  RunState state = some_state();
  state.power_sgd->iterations.assign(200'000, 7);
  state.settings["training.parallel.tp_plan"] = std::string(1 << 20, 'x');
  write_file(dir / kRunStateName, encode_run_state(state));
  EXPECT_GT(std::filesystem::file_size(dir / kRunStateName), 2U << 20);
  EXPECT_EQ(encode_run_state(read_run_state(dir / kRunStateName)), encode_run_state(state));
}

TEST(RunStateTest, AGreedyRateMayHaveRisenAndHasItsCounts) {
  RunState state = some_state();
  state.plateau = PlateauState{2.5, std::nullopt, 0, 0, GreedyState{3, 4, 500}};
  const TempDir dir;
  write_file(dir / kRunStateName, encode_run_state(state));
  const RunState read = read_run_state(dir / kRunStateName);
  EXPECT_EQ(read.plateau->scale, 2.5);
  EXPECT_EQ(read.plateau->greedy->num_good_epochs, 3);
  EXPECT_EQ(read.plateau->greedy->warmup_counter, 4);
  EXPECT_EQ(read.plateau->greedy->reset_start, 500);
}

std::string error_of(const std::string& text) {
  const TempDir dir;
  write_file(dir / kRunStateName, text);
  try {
    (void)read_run_state(dir / kRunStateName);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_THAT(error.message(), HasSubstr(kRunStateName));
    return error.message();
  }
  return "no error";
}

TEST(RunStateTest, NamesWhatIsWrong) {
  EXPECT_THAT(error_of("{"), HasSubstr("cannot be read"));
  EXPECT_THAT(error_of("[]"), HasSubstr("cannot be read"));
  EXPECT_THAT(error_of(R"({"version": 0, "step": 3})"), HasSubstr("is of version 0, and this accel reads 2"));
  EXPECT_THAT(error_of(R"({"version": 2, "step": 3})"), HasSubstr("optimizer_steps"));
}

TEST(RunStateTest, NumbersThatCannotBeAreRefused) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = encode_run_state(some_state());
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return error_of(text.replace(at, from.size(), to));
  };
  EXPECT_THAT(with("\"samples_done\": 40", "\"samples_done\": -1"), HasSubstr("'samples_done' is -1"));
  EXPECT_EQ(with("\"samples_done\": 40", "\"samples_done\": 101"), "no error");
  EXPECT_THAT(with("\"samples_done\": 40", "\"samples_done\": 102"),
              HasSubstr("has done 102 samples of an epoch of 93"));
  EXPECT_THAT(with("\"epoch\": 2,", "\"epoch\": 3,"), HasSubstr("its place in the data is in epoch 3"));
  EXPECT_THAT(with("\"epoch\": 2,", "\"epoch\": 1,"), HasSubstr("its place in the data is in epoch 1"));
  EXPECT_THAT(with("\"samples_trained\": 226", "\"samples_trained\": -1"),
              HasSubstr("'samples_trained' is -1"));
  EXPECT_EQ(with("\"samples_trained\"", "\"of_another_version\""), "no error");
  EXPECT_THAT(with("\"parameter_steps\": 5", "\"parameter_steps\": 7"), HasSubstr("'parameter_steps'"));
  EXPECT_THAT(with("\"draws\": 9", "\"draws\": -1"), HasSubstr("'draws' is -1"));
  EXPECT_THAT(with("\"draws\": 9", "\"draws\": 9000000000000"), HasSubstr("'draws'"));
  EXPECT_THAT(with("\"world_size\": 4", "\"world_size\": 4294967298"), HasSubstr("'world_size'"));
  EXPECT_THAT(with("\"world_size\": 4", "\"world_size\": 0"), HasSubstr("'world_size'"));
  EXPECT_THAT(with("\"optimizer_steps\": 6", "\"optimizer_steps\": 4.7"),
              HasSubstr("'optimizer_steps' is 4.7"));
  EXPECT_THAT(with("\"optimizer_steps\": 6", "\"optimizer_steps\": 9223372036854775807"),
              HasSubstr("'optimizer_steps'"));
  EXPECT_THAT(with("\"step\": 7", "\"step\": 1e300"), HasSubstr("'step'"));
  EXPECT_THAT(with("\"step\": 7", "\"step\": 18446744073709551615"), HasSubstr("'step'"));
  EXPECT_THAT(with("\"seed\": 18446744073709551615", "\"seed\": -5"), HasSubstr("'seed'"));
  EXPECT_THAT(with("\"shuffle\": false", "\"shuffle\": 1"), HasSubstr("cannot be read"));
  EXPECT_THAT(with("\"scale\": 0.25", "\"scale\": 0"), HasSubstr("the factor 0 on the learning rate"));
  EXPECT_EQ(with("\"scale\": 0.25", "\"scale\": 4.5"), "no error") << "of a run that began with greedy";
  EXPECT_THAT(with("\"num_bad_epochs\": 3", "\"num_bad_epochs\": 8"), HasSubstr("'num_bad_epochs'"));
  EXPECT_EQ(with("\"best\": -1.5", "\"best\": null"), "no error");
}

TEST(RunStateTest, ANewerVersionIsNotDamage) {
  const TempDir dir;
  write_file(dir / kRunStateName, R"({"version": 3, "step": 3})");
  const std::string said =
      testing::error_of(ErrorKind::kUsage, [&] { (void)read_run_state(dir / kRunStateName); });
  EXPECT_THAT(said, HasSubstr("is of version 3, and this accel reads 2"));
}

TEST(RunStateTest, AnEarlierVersionIsNamed) {
  const TempDir dir;
  write_file(dir / kRunStateName,
             R"({"version": 1, "step": 3, "epoch": 0.1, "lr": 1, "seed": 1, "world_size": 2})");
  try {
    (void)read_run_state(dir / kRunStateName);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.message(), HasSubstr("is of accel 0.1.0"));
  }
}

}  // namespace
}  // namespace accel::ckpt
