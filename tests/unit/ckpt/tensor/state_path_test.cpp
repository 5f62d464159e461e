#include "ckpt/tensor/state_path.hpp"

#include <gtest/gtest.h>

namespace accel::ckpt {
namespace {

TEST(StatePathTest, JoinsKeysWithDots) {
  EXPECT_EQ(fqn_of({"model", "h.0.weight"}), "model.h.0.weight");
  EXPECT_EQ(fqn_of({"optimizer", "param_groups", std::int64_t{0}, "lr"}), "optimizer.param_groups.0.lr");
  EXPECT_EQ(fqn_of({}), "");
}

}  // namespace
}  // namespace accel::ckpt
