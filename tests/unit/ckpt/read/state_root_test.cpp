#include "ckpt/read/state_root.hpp"

#include <gtest/gtest.h>

#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

// A checkpoint with float32 tensors of one element under these paths, and with objects under those.
std::unique_ptr<testing::FakeCheckpoint> made(const std::vector<StatePath>& tensors,
                                              const std::vector<StatePath>& objects) {
  std::vector<testing::Truth> truths;
  std::vector<StoredTensor> stored;
  for (const StatePath& path : tensors) {
    truths.push_back({path, DType::kFloat32, {1}, "1234"});
    stored.push_back({fqn_of(path), DType::kFloat32, {1}, {}});
  }
  auto checkpoint = std::make_unique<testing::FakeCheckpoint>("nowhere", truths, stored);
  for (const StatePath& path : objects) checkpoint->add_object(path, 1);
  return checkpoint;
}

std::optional<PathKey> root_of(const std::vector<StatePath>& tensors,
                               const std::vector<StatePath>& objects = {}) {
  return state_root(*made(tensors, objects));
}

bool optimizer(const std::vector<StatePath>& tensors, const std::vector<StatePath>& objects = {}) {
  return is_optimizer(*made(tensors, objects));
}

TEST(StateRootTest, TheRootOfAllIsTheRoot) {
  EXPECT_EQ(root_of({{"model", "a"}, {"model", "b", "c"}}), PathKey("model"));
  EXPECT_EQ(root_of({{"app", "a"}}, {{"app", "n"}}), PathKey("app"));
  EXPECT_EQ(root_of({{std::int64_t{0}, "a"}}), PathKey(std::int64_t{0}));
  EXPECT_EQ(root_of({}, {{"o", "n"}}), PathKey("o"));
}

TEST(StateRootTest, WithoutACommonKeyThereIsNoRoot) {
  EXPECT_EQ(root_of({}), std::nullopt);
  EXPECT_EQ(root_of({{"a"}, {"b"}}), std::nullopt);
  EXPECT_EQ(root_of({{"model"}}), std::nullopt);
  EXPECT_EQ(root_of({{"h", "a"}, {"g", "a"}}), std::nullopt);
  EXPECT_EQ(root_of({{"h", "a"}}, {{"epoch"}}), std::nullopt);
}

TEST(StateRootTest, ModelIsTheRootAmongOthers) {
  EXPECT_EQ(root_of({{"model", "a"}, {"ema", "a"}}), PathKey("model"));
  EXPECT_EQ(root_of({{"model", "a"}}, {{"epoch"}}), PathKey("model"));
  EXPECT_EQ(root_of({{"ema", "a"}}, {{"model", "extra"}}), PathKey("model"));
}

TEST(StateRootTest, BelowTheRoot) {
  EXPECT_EQ(below_root({"a", "b"}, std::nullopt), (StatePath{"a", "b"}));
  EXPECT_EQ(below_root({"a", "b", "c"}, "a"), (StatePath{"b", "c"}));
  EXPECT_EQ(below_root({"a"}, "a"), std::nullopt);
  EXPECT_EQ(below_root({"ab", "c"}, "a"), std::nullopt);
  EXPECT_EQ(below_root({}, "a"), std::nullopt);
}

TEST(StateRootTest, Optimizers) {
  EXPECT_TRUE(optimizer({{"optimizer", "state", "w", "exp_avg"}}));
  EXPECT_TRUE(optimizer({{"state", std::int64_t{0}, "exp_avg"}}, {{"param_groups", std::int64_t{0}, "lr"}}));
  EXPECT_TRUE(optimizer({{"optim", "state", "w"}}, {{"optim", "param_groups", "lr"}}));
  EXPECT_FALSE(optimizer({{"model", "state"}, {"model", "w"}}));
  EXPECT_FALSE(optimizer({{"state", "w"}}));
  EXPECT_FALSE(optimizer({{"a"}, {"b"}}));
  EXPECT_FALSE(optimizer({}));
}

}  // namespace
}  // namespace accel::ckpt
