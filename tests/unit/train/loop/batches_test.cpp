#include "train/loop/batches.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/host/memory.hpp"
#include "report/metric_sink.hpp"
#include "temp_dir.hpp"

namespace accel::train {
namespace {

using testing::read_file;
using testing::TempDir;
using testing::write_file;

config::DataConfig data(const TempDir& dir) {
  write_file(dir / "text", "0123456789");
  config::DataConfig config;
  config.train = {"text", (dir / "text").string(), 3, ""};
  config.shuffle = false;
  return config;
}

DataParallel alone() { return {}; }

TEST(BatchesTest, LabelsAreTheNextTokens) {
  const TempDir dir;
  TrainingBatches batches(data(dir), {}, 1, alone(), at::kCPU);
  const Batch batch = batches.next();
  EXPECT_TRUE(at::equal(batch.field("input_ids"), at::tensor({48, 49, 50}, at::kLong).reshape({1, 3})));
  EXPECT_TRUE(at::equal(batch.field("labels"), at::tensor({49, 50, 51}, at::kLong).reshape({1, 3})));
  EXPECT_THROW((void)batch.field("pixels"), Error);
}

TEST(BatchesTest, AModelThatShiftsLabelsItselfGetsItsInputs) {
  config::ModelConfig model;
  model.loss = "model";
  EXPECT_EQ(labels_for(model, R"({"shifts_labels": true})"), Labels::kInputs);
  EXPECT_EQ(labels_for(model, "{}"), Labels::kNextTokens);
  model.loss = "cross_entropy";
  EXPECT_EQ(labels_for(model, R"({"shifts_labels": true})"), Labels::kNextTokens);
  const TempDir dir;
  TrainingBatches batches(data(dir), {}, 1, alone(), at::kCPU);
  batches.set_labels(Labels::kInputs);
  const Batch batch = batches.next();
  EXPECT_TRUE(at::equal(batch.field("input_ids"), at::tensor({48, 49, 50}, at::kLong).reshape({1, 3})));
  EXPECT_TRUE(at::equal(batch.field("labels"), batch.field("input_ids")));
}

TEST(BatchesTest, InputsComeInTheOrderOfForward) {
  config::ModelConfig model;
  model.inputs = {"labels", "input_ids"};
  EXPECT_NO_THROW((void)labels_for(model, R"({"inputs": ["labels", "input_ids"]})"));
  EXPECT_NO_THROW((void)labels_for(model, R"({"inputs": ["x", "y"]})"));
  EXPECT_THROW((void)labels_for(model, R"({"inputs": ["input_ids", "labels"]})"), Error);
}

TEST(BatchesTest, AnInputWithAMeaningGetsNoOtherField) {
  config::ModelConfig model;
  model.inputs = {"input_ids", "labels"};
  EXPECT_THROW((void)labels_for(model, R"({"inputs": ["input_ids", "attention_mask"]})"), Error);
  EXPECT_THROW((void)labels_for(model, R"({"inputs": ["input_ids", "position_ids", "labels"]})"), Error);
  EXPECT_NO_THROW((void)labels_for(model, R"({"inputs": ["input_ids", "labels", "attention_mask"]})"));
  EXPECT_NO_THROW((void)labels_for(model, R"({"inputs": ["input_ids", "y"]})"));
  EXPECT_NO_THROW((void)labels_for(model, R"({"inputs": []})"));
}

TEST(BatchesTest, OnAnotherDeviceBothAreOneCopyAndThenApart) {
  const TempDir dir;
  config::DataConfig config = data(dir);
  config.batch_size = 2;
  TrainingBatches batches(config, {}, 1, alone(), at::kMeta);
  const Batch batch = batches.next();
  for (const at::Tensor& tokens : {batch.field("input_ids"), batch.field("labels")}) {
    EXPECT_TRUE(tokens.is_meta());
    EXPECT_TRUE(tokens.is_contiguous());
    EXPECT_EQ(tokens.sizes(), at::IntArrayRef({2, 3}));
  }
  EXPECT_FALSE(batch.field("input_ids").is_alias_of(batch.field("labels")));
}

TEST(BatchesTest, EpochsFollowOneAnother) {
  const TempDir dir;
  TrainingBatches batches(data(dir), {}, 1, alone(), at::kCPU);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(batches.last_of_epoch());
    batches.next();
  }
  EXPECT_TRUE(batches.last_of_epoch());
  EXPECT_DOUBLE_EQ(batches.epoch(), 1.0);
  EXPECT_EQ(batches.samples_trained(), 3);
  EXPECT_EQ(batches.next().field("input_ids")[0][0].item<std::int64_t>(), 48);
}

TEST(BatchesTest, WhatIsReadAheadShowsOnlyWhenItIsNext) {
  const TempDir dir;
  TrainingBatches batches(data(dir), {}, 1, alone(), at::kCPU);
  batches.set_vocabularies({{"input_ids", '7'}});  // The third batch has this token.
  for (std::int64_t done = 1; done <= 2; ++done) {
    EXPECT_EQ(batches.next().field("input_ids")[0][0].item<std::int64_t>(), '0' + 3 * (done - 1));
    EXPECT_EQ(batches.place().samples_done, done);
    EXPECT_DOUBLE_EQ(batches.epoch(), static_cast<double>(done) / 3);
  }
  for (int again = 0; again < 2; ++again) EXPECT_THROW(batches.next(), Error);
  EXPECT_EQ(batches.place().samples_done, 2);
  ckpt::DataPlace place = batches.place();
  place.samples_done = 1;
  batches.go_to(place);
  EXPECT_EQ(batches.next().field("input_ids")[0][0].item<std::int64_t>(), '3');
  EXPECT_EQ(batches.place().samples_done, 2);
}

TEST(BatchesTest, TooLittleDataIsAUsageError) {
  const TempDir dir;
  config::DataConfig config = data(dir);
  config.batch_size = 4;
  EXPECT_THROW(TrainingBatches(config, {}, 1, alone(), at::kCPU), Error);
}

TEST(MetricsTest, OneObjectALineAndAPeakOfMemory) {
  const TempDir dir;
  JsonLines log(dir / "metrics.jsonl");
  log.open(0);
  log.write({{"step", 1}, {"loss", 0.5}});
  EXPECT_EQ(read_file(dir / "metrics.jsonl"), "{\"step\":1,\"loss\":0.5}\n");
  EXPECT_GT(max_rss_bytes(), std::uint64_t{10'000'000});
}

}  // namespace
}  // namespace accel::train
