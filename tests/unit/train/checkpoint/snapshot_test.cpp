#include "train/checkpoint/snapshot.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <vector>

namespace accel::train {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kMany = std::int64_t{3} << 20;  // 12 MiB of float32: several pieces.

/// Reads a source to its end, as the writer does.
at::Tensor read_all(Snapshot& snapshot, const ItemSource& source) {
  at::Tensor out = at::empty({source.numel}, source.tensor.options());
  const std::uint64_t bytes = out.nbytes();
  for (std::uint64_t at = 0; at < bytes;) {
    const std::span<const std::byte> piece = snapshot.read(source, at);
    EXPECT_FALSE(piece.empty());
    std::memcpy(static_cast<std::byte*>(out.mutable_data_ptr()) + at, piece.data(), piece.size());
    at += piece.size();
  }
  snapshot.written(source);
  return out;
}

class SnapshotTest : public ::testing::Test {
 protected:
  /// Adds the sources of the tensors, one each, as what training changes.
  void add(std::vector<at::Tensor> tensors) {
    for (const at::Tensor& tensor : tensors) sources_.push_back({tensor, 0, tensor.numel()});
    snapshot_.add(sources_, tensors, {});
  }

  Snapshot snapshot_{std::uint64_t{1} << 30};
  std::vector<ItemSource> sources_;
};

TEST_F(SnapshotTest, WhatIsWrittenInTimeIsNotCopied) {
  const at::Tensor tensor = at::arange(kMany, at::kFloat);
  add({tensor});
  EXPECT_TRUE(read_all(snapshot_, sources_[0]).equal(at::arange(kMany, at::kFloat)));
  snapshot_.keep(tensor);
  EXPECT_EQ(snapshot_.most_copied(), 0U);
}

TEST_F(SnapshotTest, AChangeInTheMiddleOfASourceIsNotSeen) {
  const at::Tensor tensor = at::arange(kMany, at::kFloat);
  add({tensor});
  const std::span<const std::byte> first = snapshot_.read(sources_[0], 0);
  ASSERT_LT(first.size(), tensor.nbytes());
  snapshot_.keep(tensor);
  EXPECT_EQ(snapshot_.most_copied(), tensor.nbytes());
  tensor.fill_(-1);
  EXPECT_TRUE(read_all(snapshot_, sources_[0]).equal(at::arange(kMany, at::kFloat)));
}

TEST_F(SnapshotTest, APieceThatWasReadSurvivesTheChange) {
  const at::Tensor tensor = at::ones({8}, at::kFloat);
  add({tensor});
  const std::span<const std::byte> piece = snapshot_.read(sources_[0], 0);
  snapshot_.keep(tensor);
  tensor.zero_();
  EXPECT_EQ(std::memcmp(piece.data(), at::ones({8}, at::kFloat).const_data_ptr(), piece.size()), 0);
}

TEST_F(SnapshotTest, RangesOfATensorAreReadByTheirPlace) {
  const at::Tensor tensor = at::arange(10, at::kFloat);
  sources_ = {{tensor, 2, 3}, {tensor, 7, 3}};
  snapshot_.add(sources_, {{tensor}}, {});
  EXPECT_TRUE(read_all(snapshot_, sources_[0]).equal(at::arange(2, 5, at::kFloat)));
  snapshot_.keep(tensor);
  tensor.zero_();
  EXPECT_TRUE(read_all(snapshot_, sources_[1]).equal(at::arange(7, 10, at::kFloat)));
}

TEST_F(SnapshotTest, OtherTensorsAreCopiedAtOnceAndConstantOnesNever) {
  const at::Tensor other = at::ones({4}, at::kFloat);
  const at::Tensor constant = at::ones({4}, at::kFloat);
  sources_ = {{other, 1, 2}, {constant, 1, 2}, {}};
  snapshot_.add(sources_, {}, {{constant}});
  other.zero_();
  EXPECT_TRUE(read_all(snapshot_, sources_[0]).equal(at::ones({2}, at::kFloat)));
  EXPECT_TRUE(sources_[1].tensor.is_same(constant));
  EXPECT_TRUE(read_all(snapshot_, sources_[1]).equal(at::ones({2}, at::kFloat)));
}

TEST(SnapshotLimitTest, KeepWaitsForTheWriterIfTheMemoryIsFull) {
  const at::Tensor a = at::full({kMany}, 1, at::kFloat);
  const at::Tensor b = at::full({kMany}, 2, at::kFloat);
  const at::Tensor c = at::full({kMany}, 3, at::kFloat);
  std::vector<ItemSource> sources = {{a, 0, kMany}, {b, 0, kMany}, {c, 0, kMany}};
  Snapshot snapshot(a.nbytes());
  snapshot.add(sources, {{a, b, c}}, {});
  snapshot.keep(c);  // It takes all of the memory.
  auto kept = std::async(std::launch::async, [&] {
    snapshot.keep(b);
    b.zero_();
  });
  EXPECT_EQ(kept.wait_for(100ms), std::future_status::timeout);
  EXPECT_TRUE(read_all(snapshot, sources[0]).equal(a));
  EXPECT_EQ(kept.wait_for(100ms), std::future_status::timeout);
  EXPECT_TRUE(read_all(snapshot, sources[1]).equal(at::full({kMany}, 2, at::kFloat)));
  kept.get();
  EXPECT_EQ(snapshot.most_copied(), a.nbytes());
}

TEST(SnapshotLimitTest, AFinishedCopyMakesRoom) {
  const at::Tensor a = at::full({kMany}, 1, at::kFloat);
  const at::Tensor b = at::full({kMany}, 2, at::kFloat);
  std::vector<ItemSource> sources = {{a, 0, kMany}, {b, 0, kMany}};
  Snapshot snapshot(a.nbytes());
  snapshot.add(sources, {{a, b}}, {});
  snapshot.keep(a);
  a.zero_();
  EXPECT_TRUE(read_all(snapshot, sources[0]).equal(at::full({kMany}, 1, at::kFloat)));
  snapshot.keep(b);
  b.zero_();
  EXPECT_TRUE(read_all(snapshot, sources[1]).equal(at::full({kMany}, 2, at::kFloat)));
}

TEST(SnapshotLimitTest, AnAbandonedSnapshotHoldsNobodyUp) {
  const at::Tensor tensor = at::ones({kMany}, at::kFloat);
  std::vector<ItemSource> sources = {{tensor, 0, kMany}};
  Snapshot snapshot(1);
  snapshot.add(sources, {{tensor}}, {});
  auto kept = std::async(std::launch::async, [&] { snapshot.keep(tensor); });
  EXPECT_EQ(kept.wait_for(50ms), std::future_status::timeout);
  snapshot.abandon();
  kept.get();
}

}  // namespace
}  // namespace accel::train
