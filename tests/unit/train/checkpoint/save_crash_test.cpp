#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include "base/crash_matrix.hpp"
#include "ckpt/verify/verify.hpp"
#include "train/checkpoint/save.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {
namespace {

using accel::testing::CrashRun;
using accel::testing::CrashScenario;
using accel::testing::Ending;
using accel::testing::names_in;
using accel::testing::TempDir;
using std::filesystem::path;
using torch::jit::Module;

void write_model(const path& file) {
  Module root("Net");
  root.register_parameter("weight", at::randn({4, 4}), false);
  root.attr("weight").toTensor().set_requires_grad(true);
  root.register_buffer("mean", at::ones({4}));
  root.define("def forward(self, x):\n  return (x @ self.weight + self.mean).sum()\n");
  root.save(file.string());
}

/// Returns a model and its optimizer after a step.
struct Trained {
  Trained(const path& file, Group& group)
      : model(ModelFile::open(file), ShardingOptions{}, at::kCPU, group),
        optimizer({}, model.trainable_buffers(), model.groups().place().shard) {
    config.checkpoint.total_limit = 1;
    model.begin_micro_batch(true);
    model.forward({at::ones({2, 4})}).toTensor().backward();
    model.finish_backward();
    optimizer.step(0.1);
  }

  void save(const path& checkpoints, std::int64_t step, Group& group) {
    ckpt::RunCheckpoints store(checkpoints);
    TrainerState state;
    state.run.step = step;
    CheckpointSaver saver(store, model, optimizer, config, group, 1);
    saver.begin(std::move(state), /*survives=*/false, /*waits=*/true);
    saver.finish();
  }

  config::TrainingConfig config;
  ShardedModel model;
  Optimizer optimizer;
};

void expect_whole(const path& checkpoint) {
  const ckpt::VerifyReport report = ckpt::verify(checkpoint, {.threads = 1});
  for (const ckpt::Verified& verified : report.checkpoints)
    EXPECT_TRUE(verified.findings.empty()) << verified.path;
  // The checkpoint has model, optimizer, and the manifest of both.
  EXPECT_GE(report.checkpoints.size(), 3U) << checkpoint;
}

/// Kills, failures and a full disk at every call of a training's save, in the worker's own code.
class SaveCrashTest : public ::testing::Test {
 protected:
  void SetUp() override { ACCEL_NEEDS_FAULTS(); }

  /// Checks what must hold after any end of the save of step 2.
  void check(const CrashRun& run) {
    ckpt::RunCheckpoints store(run.dir / "checkpoints");
    const std::vector<std::int64_t> steps = store.steps();
    ASSERT_FALSE(steps.empty());
    for (const std::int64_t step : steps) expect_whole(store.path_of(step));
    if (run.ending == Ending::kSucceeded) {
      EXPECT_EQ(steps.back(), 2);
    }
    // A failed checkpoint is removed, unless the removal failed.
    if (run.ending == Ending::kFailed) {
      for (const std::string& name : names_in(run.dir / "checkpoints"))
        EXPECT_FALSE(name.ends_with(".incomplete")) << name;
    }
    store.sweep();
    trained_.save(run.dir / "checkpoints", 3, group_);
    EXPECT_EQ(names_in(run.dir / "checkpoints"), std::vector<std::string>{"checkpoint_3"});
    expect_whole(store.path_of(3));
  }

  path model_file() {
    write_model(dir_ / "net.pt");
    return dir_ / "net.pt";
  }

  TempDir dir_;
  Group group_ = Group::connect({}, config::Backend::kAuto, at::kCPU);
  Trained trained_{model_file(), group_};
  CrashScenario scenario_{
      .prepare = [this](const path& dir) { trained_.save(dir / "checkpoints", 1, group_); },
      .work = [this](const path& dir) { trained_.save(dir / "checkpoints", 2, group_); },
      .seal = "checkpoint_2"};
};

TEST_F(SaveCrashTest, ACheckpointIsWholeOrNotThereAndTheNextSaveWorks) {
  const std::size_t runs =
      accel::testing::run_crash_matrix(scenario_, [&](const CrashRun& run) { check(run); });
  EXPECT_GT(runs, 200U);
}

TEST_F(SaveCrashTest, AFullDiskLeavesNothingBehind) {
  int failed = 0;
  for (int number = 1; failed == number - 1; ++number) {
    const TempDir dir;
    scenario_.prepare(dir.path());
    CrashRun run{fmt::format("full@{}", number), "", Ending::kSucceeded, dir.path()};
    run.ending = accel::testing::run_with_faults(run.fault, [&] { scenario_.work(dir.path()); });
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, run.fault);
    if (run.ending == Ending::kFailed) {
      ++failed;
      EXPECT_EQ(names_in(dir / "checkpoints"), std::vector<std::string>{"checkpoint_1"});
    }
    check(run);
  }
  EXPECT_GT(failed, 20);
}

}  // namespace
}  // namespace accel::train
