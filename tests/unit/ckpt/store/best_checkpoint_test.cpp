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
void save(const RunCheckpoints& store, std::int64_t step, std::map<std::string, double> evaluation) {
  RunState state;
  state.step = step;
  state.world_size = 1;
  state.evaluation = std::move(evaluation);
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
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss")), std::nullopt);
  save(store, 10, {{"eval_loss", 3}, {"eval_accuracy", 0.5}, {"eval_wiki_loss", 1}});
  save(store, 20, {{"eval_loss", 2}, {"eval_accuracy", 0.75}, {"eval_wiki_loss", 2}});
  save(store, 100, {{"eval_loss", 2.5}, {"eval_accuracy", 0.25}});
  save(store, 110, {});
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss")), 20);
  EXPECT_EQ(best_checkpoint(store, BestMetric("accuracy")), 20);
  EXPECT_EQ(best_checkpoint(store, BestMetric("wiki_loss")), 10);
  EXPECT_EQ(best_checkpoint(store, BestMetric("wiki_accuracy")), std::nullopt);
  save(store, 120, {{"eval_loss", 2}});
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss")), 120) << "of equals it is the newest";
}

TEST(BestCheckpointTest, OneThatIsNotWholeDoesNotCount) {
  const TempDir dir;
  const RunCheckpoints store(dir.path());
  for (const std::int64_t step : {1, 2, 3}) save(store, step, {{"eval_loss", static_cast<double>(step)}});
  write_file(store.path_of(1) / kRunStateName, "{}");
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss")), 2);
  std::filesystem::remove(store.path_of(2) / kManifestName);
  EXPECT_EQ(best_checkpoint(store, BestMetric("loss")), 3);
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
