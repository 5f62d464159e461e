#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ranks_as_forks.hpp"
#include "temp_dir.hpp"
#include "test_port.hpp"
#include "train/checkpoint/save.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using torch::jit::Module;

std::int64_t keys_of_store(int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  return c10d::TCPStore("127.0.0.1", options).getNumKeys();
}

TEST(SavesOfRanksTest, LeaveNoKeyInTheStore) {
  const TempDir dir;
  Module root("Net");
  root.register_parameter("weight", at::ones({64, 64}).set_requires_grad(true), false);
  root.define("def forward(self, x):\n  return (x @ self.weight).sum()\n");
  root.save((dir / "net.pt").string());
  const int port = testing::test_port();
  testing::on_forked_ranks(3, port, [&](Group& group) {
    const config::TrainingConfig config;
    const ShardedModel model(ModelFile::open(dir / "net.pt"), ShardingOptions{}, at::kCPU, group);
    Optimizer optimizer({}, model.trainable_buffers(), model.groups().place().shard);
    const auto keys = [&] { return group.rank() == 0 ? keys_of_store(port) : 0; };
    const auto save = [&](const char* directory, std::int64_t step) {
      ckpt::RunCheckpoints store(dir / directory);
      CheckpointSaver saver(store, model, optimizer, config, group, 3);
      TrainerState state;
      state.run.step = step;
      saver.begin(state, true, true);
      return saver.finish();
    };
    const std::int64_t before = keys();
    for (std::int64_t step = 1; step <= 5; ++step) {
      const auto saved = save("checkpoints", step);
      ASSERT_TRUE(saved);
      EXPECT_EQ(saved->bytes > 0, group.rank() == 0);
      EXPECT_EQ(keys(), before) << step;
    }
    try {
      // Rank 0 makes its directory alone.
      save(group.rank() == 1 ? "elsewhere" : "checkpoints", 6);
      ADD_FAILURE() << "rank 1 has no directory to write into";
    } catch (const SaveFailed& error) {
      const std::string& said = error.message();
      EXPECT_EQ(said.starts_with("rank 1 could not save the checkpoint of step 6: "), group.rank() != 1)
          << said;
      EXPECT_NE(said.find("elsewhere"), std::string::npos) << said;
    }
    EXPECT_EQ(keys(), before);
  });
}

}  // namespace
}  // namespace accel::train
