#include "train/fsdp/buffer_broadcast.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "ranks_as_threads.hpp"
#include "test_port.hpp"

namespace accel::train {
namespace {

using torch::jit::Module;

/// A module with buffers of two dtypes, one in a submodule, which are all `value`.
Module net(double value) {
  Module inner("Inner");
  inner.register_buffer("mean", at::full({3, 2}, value));
  inner.register_buffer("count", at::full({}, static_cast<std::int64_t>(value), at::kLong));
  Module root("Net");
  root.register_buffer("scale", at::full({5}, value).t());
  root.register_parameter("weight", at::full({2}, value), false);
  root.register_module("inner", inner);
  return root;
}

void fill(const Module& module, double value) {
  for (at::Tensor buffer : module.buffers(/*recurse=*/true)) buffer.fill_(value);
}

bool all_are(const Module& module, double value) {
  bool all = true;
  for (const at::Tensor& buffer : module.buffers(/*recurse=*/true))
    all &= buffer.eq(value).all().item<bool>();
  return all;
}

TEST(BufferBroadcastTest, RankZerosAreEverybodysBeforeTheFirstForwardAndBehindAStep) {
  testing::on_ranks(3, 3, testing::test_port(), [](Group& group) {
    const double own = 10 + group.rank();
    const Module module = net(own);
    BufferBroadcast broadcast(module, group);
    broadcast.before_forward();
    EXPECT_TRUE(all_are(module, 10));
    EXPECT_TRUE(module.attr("weight").toTensor().eq(own).all().item<bool>());

    // After a micro-batch without reduction, or an evaluation, each rank keeps its own buffers.
    broadcast.after_forward(/*reduces=*/false);
    fill(module, own + 10);
    broadcast.before_forward();
    EXPECT_TRUE(all_are(module, own + 10));

    broadcast.after_forward(/*reduces=*/true);
    broadcast.before_forward();
    EXPECT_TRUE(all_are(module, 20));
  });
}

TEST(BufferBroadcastTest, AnExpandedBufferIsNamed) {
  testing::on_ranks(2, 2, testing::test_port(), [](Group& group) {
    Module inner("Inner");
    inner.register_buffer("mask", at::ones({1, 3}).expand({4, 3}));
    Module root("Net");
    root.register_module("inner", inner);
    BufferBroadcast broadcast(root, group);
    try {
      broadcast.before_forward();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(error.message().find("'inner.mask'"), std::string::npos) << error.message();
      EXPECT_NE(error.advice().find("clone()"), std::string::npos) << error.advice();
    }
  });
}

}  // namespace
}  // namespace accel::train
