#include "ckpt/store/best_checkpoint.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <utility>

#include "ckpt/io/crc32.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/run_state.hpp"
#include "temp_dir.hpp"

namespace accel::ckpt {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;

/// Writes a whole checkpoint of a step with these numbers of an evaluation.
void save(const RunCheckpoints& store, std::int64_t step, std::map<std::string, double> evaluation,
          std::map<std::string, std::string> settings = {}) {
  RunState state;
  state.step = step;
  state.world_size = 1;
  state.evaluation = std::move(evaluation);
  state.settings = std::move(settings);
  const std::filesystem::path path = store.path_of(step);
  std::filesystem::create_directories(path);
  const std::string text = encode_run_state(state);
  write_file(path / kRunStateName, text);
  Manifest manifest;
  manifest.step = step;
  manifest.world_size = 1;
  manifest.files[kRunStateName] = {text.size(), crc32(std::as_bytes(std::span(text)))};
  write_file(path / kManifestName, encode_manifest(manifest));
}

TEST(BestCheckpointTest, IsTheOneWithTheBestNumberOfItsEvaluation) {
  const TempDir dir;
  const RunCheckpoints store(dir.path());
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss"), dir / "metrics.jsonl"), std::nullopt);
  save(store, 10, {{"eval_loss", 3}, {"eval_accuracy", 0.5}, {"eval_wiki_loss", 1}});
  save(store, 20, {{"eval_loss", 2}, {"eval_accuracy", 0.75}, {"eval_wiki_loss", 2}});
  save(store, 100, {{"eval_loss", 2.5}, {"eval_accuracy", 0.25}});
  save(store, 110, {});
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss"), dir / "metrics.jsonl"), 20);
  EXPECT_EQ(best_checkpoint(store, BestMetric("accuracy"), dir / "metrics.jsonl"), 20);
  EXPECT_EQ(best_checkpoint(store, BestMetric("wiki_loss"), dir / "metrics.jsonl"), 10);
  EXPECT_EQ(best_checkpoint(store, BestMetric("wiki_accuracy"), dir / "metrics.jsonl"), std::nullopt);
  save(store, 120, {{"eval_loss", 2}});
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss"), dir / "metrics.jsonl"), 120)
      << "of equals it is the newest";
}

TEST(BestCheckpointTest, OneThatIsNotWholeDoesNotCount) {
  const TempDir dir;
  const RunCheckpoints store(dir.path());
  for (const std::int64_t step : {1, 2, 3}) save(store, step, {{"eval_loss", static_cast<double>(step)}});
  write_file(store.path_of(1) / kRunStateName, "{}");
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss"), dir / "metrics.jsonl"), 2);
  std::filesystem::remove(store.path_of(2) / kManifestName);
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss"), dir / "metrics.jsonl"), 3);
}

TEST(BestCheckpointTest, TheStateComesBeforeTheReportedValue) {
  const TempDir dir;
  const RunCheckpoints store(dir.path());
  const BestMetric loss("loss");
  const std::filesystem::path metrics = dir / "metrics.jsonl";
  save(store, 2, {});
  save(store, 4, {{"eval_loss", 2}});
  save(store, 6, {{"eval_loss", 3}});
  save(store, 8, {});
  EXPECT_EQ(best_checkpoint(store, loss, metrics), 4);
  // The record of step 4 is lost, and that of step 6 is not what the checkpoint has.
  write_file(metrics,
             "{\"step\":2,\"eval_loss\":2.5}\n{\"step\":6,\"eval_loss\":1}\n{\"step\":7,\"eval_loss\":0}\n"
             "{\"step\":8,\"eval_loss\":null}\n{\"step\":8,\"eval_l");
  EXPECT_EQ(best_checkpoint(store, loss, metrics), 4);
  EXPECT_EQ(checkpoint_values(store, store.steps(), loss, metrics),
            (std::map<std::int64_t, double>{{2, 2.5}, {4, 2}, {6, 3}}));
  // A checkpoint of an earlier accel has its evaluation in the metrics alone.
  write_file(metrics, "{\"step\":2,\"eval_loss\":1.5}\n");
  EXPECT_EQ(best_checkpoint(store, loss, metrics), 2);
}

TEST(BestCheckpointTest, ValuesOnOtherDataAreNotCompared) {
  const TempDir dir;
  const RunCheckpoints store(dir.path());
  const std::filesystem::path metrics = dir / "metrics.jsonl";
  const std::string eval = "contents of training.data.eval (CRC-32 of samples)";
  const std::string wiki = "contents of training.data.eval_sets.wiki (CRC-32 of samples)";
  save(store, 2, {{"eval_loss", 1}, {"eval_wiki_loss", 1}}, {{eval, "a"}, {wiki, "w"}});
  save(store, 3, {{"eval_loss", 2}, {"eval_wiki_loss", 2}}, {{eval, "b"}, {wiki, "w"}});
  save(store, 4, {{"eval_loss", 3}, {"eval_wiki_loss", 3}}, {{eval, "b"}, {wiki, "w"}});
  save(store, 5, {}, {{eval, "c"}, {wiki, "v"}});  // It has no value, and so says nothing of others.
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss"), metrics), 3);
  EXPECT_EQ(best_checkpoint(store, BestMetric("wiki_loss"), metrics), 2);
  save(store, 1, {{"eval_loss", 0.5}});  // An earlier accel did not write the fingerprint.
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss"), metrics), 1);
  for (const char* name : {"loss", "accuracy"}) EXPECT_EQ(BestMetric(name).set(), "");
  EXPECT_EQ(BestMetric("my_wiki_loss").set(), "my_wiki");
}

TEST(BestCheckpointTest, NoNumberIsBetterThanNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* name : {"loss", "accuracy"}) {
    const BestMetric metric(name);
    EXPECT_FALSE(metric.is_better(nan, metric.worst()));
    EXPECT_TRUE(metric.is_better(-1e300, metric.worst()));
    EXPECT_TRUE(metric.is_better(1e300, metric.worst()));
  }
  // A set may be named like a number.
  EXPECT_TRUE(BestMetric("accuracy_loss").is_better(1, 2));
  EXPECT_EQ(BestMetric("accuracy_loss").key(), "eval_accuracy_loss");
}

}  // namespace
}  // namespace accel::ckpt
