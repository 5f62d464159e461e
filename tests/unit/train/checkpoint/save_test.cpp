#include "train/checkpoint/save.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "ckpt/store/manifest.hpp"
#include "ckpt/verify/verify.hpp"
#include "temp_dir.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using torch::jit::Module;

/// Lowers a limit of this process for a scope.
class LoweredLimit {
 public:
  LoweredLimit(__rlimit_resource resource, rlim_t limit) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    const rlimit lowered{limit, before_.rlim_max};
    EXPECT_EQ(::setrlimit(resource_, &lowered), 0);
  }
  LoweredLimit(const LoweredLimit&) = delete;
  LoweredLimit& operator=(const LoweredLimit&) = delete;
  ~LoweredLimit() { ::setrlimit(resource_, &before_); }

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

/// While it lives, a thread that writes behind byte `limit` of a file is held there until release(), and its
/// write fails then: the kernel sends SIGXFSZ to the thread, whose handler waits.
class HeldWriter {
 public:
  explicit HeldWriter(rlim_t limit) : limit_(RLIMIT_FSIZE, limit) {
    EXPECT_EQ(::pipe(held_.data()), 0);
    EXPECT_EQ(::pipe(released_.data()), 0);
    struct sigaction action {};
    action.sa_handler = [](int) {
      char byte = 0;
      [[maybe_unused]] ssize_t done = ::write(held_[1], &byte, 1);
      done = ::read(released_[0], &byte, 1);
    };
    ::sigaction(SIGXFSZ, &action, &before_);
  }
  HeldWriter(const HeldWriter&) = delete;
  HeldWriter& operator=(const HeldWriter&) = delete;
  ~HeldWriter() {
    ::sigaction(SIGXFSZ, &before_, nullptr);
    for (const int fd : {held_[0], held_[1], released_[0], released_[1]}) ::close(fd);
  }

  void wait_until_held() {
    char byte = 0;
    EXPECT_EQ(::read(held_[0], &byte, 1), 1);
  }
  /// Call it once, after which no other thread is held.
  void release() { EXPECT_EQ(::write(released_[1], "....", 4), 4); }

 private:
  static inline std::array<int, 2> held_{};
  static inline std::array<int, 2> released_{};
  struct sigaction before_ {};
  LoweredLimit limit_;
};

/// The bytes of this process's address space.
rlim_t address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

/// A model whose tensors take longer to write than a step takes to compute, and a gradient for it.
class SaveTest : public ::testing::Test {
 protected:
  void forward_and_backward() {
    model_.begin_micro_batch(true);
    model_.forward({at::ones({2, 2048})}).toTensor().backward();
    model_.finish_backward();
  }

  void step() {
    forward_and_backward();
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
  Optimizer optimizer_{{}, model_.trainable_buffers(), model_.groups().place().shard};
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

// Without memory for a copy the save fails. The optimizer changes the tensors then, which the writer may
// still be reading, so it must have ended before.
TEST_F(SaveTest, AFailedCopyEndsTheWriterBeforeTheTensorsChange) {
  CheckpointSaver saver(store_, model_, optimizer_, config_, group_, 1);
  const at::Tensor shard = model_.trainable_buffers().front()->shard();
  ASSERT_GE(shard.nbytes(), std::uint64_t{32} << 20);  // Memory of this size is always mapped.
  const at::Tensor before = shard.clone();
  forward_and_backward();
  bool is_unchanged = false;
  {
    HeldWriter writer(shard.nbytes() / 4);
    saver.begin(state(1), true, false);
    writer.wait_until_held();
    std::thread release([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      is_unchanged = std::memcmp(shard.const_data_ptr(), before.const_data_ptr(), shard.nbytes()) == 0;
      writer.release();
    });
    {
      const LoweredLimit limit(RLIMIT_AS, address_space() + shard.nbytes() / 2);
      optimizer_.step(0.1);
    }
    release.join();
  }
  EXPECT_TRUE(is_unchanged);
  EXPECT_FALSE(shard.equal(before));
  try {
    saver.finish();
    ADD_FAILURE() << "there was memory";
  } catch (const SaveFailed& error) {
    // The failure of the writer, which comes later, is not reported.
    EXPECT_EQ(error.message(), "there is not enough memory");
  }
  saver.begin(state(2), true, false);
  ASSERT_TRUE(saver.finish());
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
