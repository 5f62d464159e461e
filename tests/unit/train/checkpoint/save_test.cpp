#include "train/checkpoint/save.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include "ckpt/store/manifest.hpp"
#include "ckpt/verify/verify.hpp"
#include "temp_dir.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using torch::jit::Module;

/// A model whose tensors take longer to write than a step takes to compute, and a gradient for it.
class SaveTest : public ::testing::Test {
 protected:
  void step() {
    model_.begin_micro_batch(true);
    model_.forward({at::ones({2, 2048})}).toTensor().backward();
    model_.finish_backward();
    optimizer_.step(0.1);
    model_.clear_gradients();
  }

  static std::filesystem::path write_model(const std::filesystem::path& file) {
    Module root("Net");
    at::manual_seed(0);
    for (const char* name : {"first", "second", "frozen"}) {
      root.register_parameter(name, at::randn({2048, 2048}), false);
      root.attr(name).toTensor().set_requires_grad(std::string_view(name) != "frozen");
    }
    root.register_buffer("mean", at::ones({4}));
    root.define(
        "def forward(self, x):\n"
        "  self.mean.add_(1)\n"
        "  return (x @ self.first @ self.second @ self.frozen).sum()\n");
    root.save(file.string());
    return file;
  }

  TrainerState state(std::int64_t step) const {
    TrainerState state;
    state.run.step = step;
    return state;
  }

  /// The sizes and checksums of the files of a checkpoint that hold tensors.
  [[nodiscard]] std::map<std::string, std::pair<std::uint64_t, std::uint32_t>> files(
      std::int64_t step) const {
    std::map<std::string, std::pair<std::uint64_t, std::uint32_t>> files;
    for (const auto& [name, file] : ckpt::parse_manifest(store_.path_of(step) / ckpt::kManifestName).files)
      files[name] = {file.bytes, file.crc32};
    // These name the step.
    files.erase("trainer_state.json");
    files.erase("random_states_0.json");
    return files;
  }

  TempDir dir_;
  Group group_ = Group::connect({}, config::Backend::kAuto, at::kCPU);
  config::TrainingConfig config_;
  ShardedModel model_{ModelFile::open(write_model(dir_ / "net.pt")), ShardingOptions{}, at::kCPU, group_};
  AdamW optimizer_{{}, model_.trainable_buffers(), model_.groups().place().shard};
  ckpt::RunCheckpoints store_{dir_ / "checkpoints"};
};

TEST_F(SaveTest, WhatIsSavedBehindTheTrainingIsTheStateOfTheBeginning) {
  CheckpointSaver saver(store_, model_, optimizer_, config_, group_, 1);
  step();
  saver.begin(state(1), false, false);
  ASSERT_TRUE(saver.finish());
  saver.begin(state(2), false, false);
  EXPECT_TRUE(saver.in_flight());
  step();  // It changes weights, moments and buffers while they are written.
  step();
  const auto saved = saver.finish();
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->step, 2);
  EXPECT_GT(saved->bytes, std::uint64_t{2048} * 2048 * 4 * 7);
  EXPECT_EQ(files(1), files(2));
  saver.begin(state(3), false, false);
  saver.finish();
  EXPECT_NE(files(1), files(3));
  for (const std::int64_t step : {1, 2, 3}) {
    for (const ckpt::Verified& verified : ckpt::verify(store_.path_of(step), {}).checkpoints)
      EXPECT_TRUE(verified.findings.empty()) << verified.path;
  }
}

TEST_F(SaveTest, AnyMemoryLimitWillDo) {
  config_.checkpoint.host_memory = 1;
  CheckpointSaver saver(store_, model_, optimizer_, config_, group_, 1);
  step();
  saver.begin(state(1), false, false);
  saver.finish();
  saver.begin(state(2), false, false);
  step();
  saver.finish();
  EXPECT_EQ(files(1), files(2));
}

TEST_F(SaveTest, AFailureHarmsNeitherTheRunNorTheNextSave) {
  CheckpointSaver saver(store_, model_, optimizer_, config_, group_, 1);
  saver.begin(state(1), true, false);
  // A directory is in the way of a file that rank 0 writes after all ranks have written theirs, which is in
  // finish().
  const auto blocked = store_.incomplete_path_of(1) / "trainer_state.json";
  std::filesystem::create_directories(blocked);
  step();
  EXPECT_THROW(saver.finish(), Error);
  EXPECT_FALSE(saver.in_flight());
  EXPECT_FALSE(std::filesystem::exists(store_.incomplete_path_of(1)));
  saver.begin(state(2), true, false);
  ASSERT_TRUE(saver.finish());
  EXPECT_EQ(store_.steps(), std::vector<std::int64_t>{2});
}

TEST_F(SaveTest, ASaverThatIsDestroyedStopsItsThread) {
  {
    CheckpointSaver saver(store_, model_, optimizer_, config_, group_, 1);
    saver.begin(state(1), true, false);
  }
  step();
  EXPECT_EQ(store_.steps(), std::vector<std::int64_t>{});
}

}  // namespace
}  // namespace accel::train
