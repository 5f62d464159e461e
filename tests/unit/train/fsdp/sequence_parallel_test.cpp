#include "train/fsdp/sequence_parallel.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "train/c10d/fake_backend.hpp"

namespace accel::train {
namespace {

using ::testing::HasSubstr;
using torch::jit::Module;

/// A model of a forward that takes ids [batch, length] and position_ids.
Module model(const std::string& forward) {
  Module root("Root");
  root.register_parameter("table", at::randn({16, 12}), false);
  root.define("def forward(self, ids, position_ids):\n" + forward);
  return root;
}

/// Looks tokens and positions up, and splits them into heads.
std::string heads(int number) {
  return "  h = torch.embedding(self.table, ids) + torch.embedding(self.table, position_ids)\n"
         "  h = h.view([h.size(0), h.size(1), " +
         std::to_string(number) + ", -1]).transpose(1, 2)\n";
}

/// This rank of `size`, whose other ranks do not exist.
Group group(int size) { return Group::over(c10::make_intrusive<FakeBackend>(size - 1, size), at::kCPU); }

at::Tensor ids(std::int64_t length) { return at::arange(length).remainder(16).unsqueeze(0); }

std::string refusal_of(const std::string& forward, int ranks, std::int64_t length = 8,
                       std::vector<std::string> names = {"ids", "position_ids"}) {
  Module root = model(forward);
  Group parts = group(ranks);
  try {
    SequenceParallel parallel(root, std::move(names), parts);
    (void)root.forward(parallel.enter({ids(length), ids(length)}));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  } catch (const std::exception& error) {  // The interpreter rethrows another type.
    return error.what();
  }
  return "";
}

TEST(SequenceParallelTest, ARankHasItsPartOfTheInputs) {
  Module root = model(heads(3) + "  return torch.scaled_dot_product_attention(h, h, h)\n");
  Group parts = group(3);
  SequenceParallel parallel(root, {"ids", "position_ids"}, parts);
  const std::vector<c10::IValue> own = parallel.enter({ids(9), ids(9) + 1});
  EXPECT_TRUE(own.at(0).toTensor().equal(at::tensor({6, 7, 8}, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(own.at(1).toTensor().equal(at::tensor({7, 8, 9}, at::kLong).unsqueeze(0)));
}

TEST(SequenceParallelTest, OneRankComputesWhatTheModelComputes) {
  const std::string forward =
      heads(3) +
      "  mask = (position_ids.unsqueeze(1) <= position_ids.unsqueeze(2)).unsqueeze(1)\n"
      "  y = torch.scaled_dot_product_attention(h, h[:, :1], h[:, :1], mask, enable_gqa=True)\n"
      "  return torch.scaled_dot_product_attention(y, h, h, is_causal=True, scale=0.3)\n";
  Module root = model(forward);
  const at::Tensor expected = root.copy().forward({ids(8), ids(8)}).toTensor();
  Group alone = Group::connect({}, config::Backend::kAuto, at::kCPU);
  SequenceParallel parallel(root, {"ids", "position_ids"}, alone);
  EXPECT_TRUE(root.forward(parallel.enter({ids(8), ids(8)})).toTensor().allclose(expected));
}

TEST(SequenceParallelTest, WhatCannotBeCutIsRefused) {
  const std::string attention = "  return torch.scaled_dot_product_attention(h, h, h)\n";
  EXPECT_THAT(refusal_of(heads(3) + attention, 2),
              HasSubstr("its 3 heads are not a multiple of parallelism_config.sp_size: 2"));
  EXPECT_THAT(refusal_of(heads(2) + attention, 2, 9),
              HasSubstr("'ids' has sequences of 9 tokens, which is not a multiple of "
                        "parallelism_config.sp_size: 2"));
  EXPECT_THAT(refusal_of(heads(2) + "  return h\n", 2),
              HasSubstr("the model does not call scaled_dot_product_attention"));
  EXPECT_THAT(refusal_of("  h = torch.embedding(self.table, ids).unsqueeze(1)\n"
                         "  mask = position_ids.unsqueeze(1) <= position_ids.unsqueeze(2)\n"
                         "  return torch.scaled_dot_product_attention(h, h, h, mask)\n",
                         2),
              HasSubstr("the model does not use 'position_ids' outside of its masks"));
  EXPECT_THAT(
      refusal_of(heads(2) + "  return torch.scaled_dot_product_attention(h, h[:, :, :2], h[:, :, :2])\n", 2),
      HasSubstr("sequence parallelism needs [batch, heads, length, width] of one sequence"));
}

}  // namespace
}  // namespace accel::train
