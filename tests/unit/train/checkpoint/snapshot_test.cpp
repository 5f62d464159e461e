#include "train/checkpoint/snapshot.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
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

/// A device whose tensors are those of the CPU in float32. It gives nothing before it is opened.
class GatedReader final : public DeviceReader {
 public:
  [[nodiscard]] bool is_needed_for(const at::Tensor& tensor) const override {
    return tensor.scalar_type() == at::kFloat;
  }
  void read(std::span<std::byte> to, const at::Tensor& from) override {
    opened.wait();
    const std::lock_guard lock(mutex);
    if (fails) throw std::runtime_error("the device has failed");
    std::memcpy(to.data(), from.const_data_ptr(), to.size());
    bytes.push_back(to.size());
  }

  std::promise<void> gate;
  std::shared_future<void> opened{gate.get_future()};
  std::mutex mutex;
  bool fails = false;
  std::vector<std::size_t> bytes;
};

/// Tensors of a device, one source each.
class DeviceSnapshotTest : public ::testing::Test {
 protected:
  void begin(std::uint64_t most_bytes, int count = 3) {
    auto reader = std::make_unique<GatedReader>();
    reader_ = reader.get();
    snapshot_ = std::make_unique<Snapshot>(most_bytes, std::move(reader));
    for (int i = 0; i < count; ++i) tensors_.push_back(at::full({kMany}, i, at::kFloat));
    for (const at::Tensor& tensor : tensors_) sources_.push_back({tensor, 0, kMany});
    snapshot_->add(sources_, tensors_, {});
  }
  void open() { reader_->gate.set_value(); }
  void change(std::size_t i) {
    snapshot_->keep(tensors_[i]);
    tensors_[i].fill_(-1);
  }
  void expect_written(std::size_t i) {
    const at::Tensor read = read_all(*snapshot_, sources_[i]);
    EXPECT_TRUE(read.equal(at::full({kMany}, static_cast<double>(i), at::kFloat))) << i;
  }

  static constexpr std::uint64_t kBytes = kMany * sizeof(float);
  GatedReader* reader_ = nullptr;
  std::vector<at::Tensor> tensors_;
  std::vector<ItemSource> sources_;
  std::unique_ptr<Snapshot> snapshot_;
};

TEST_F(DeviceSnapshotTest, TrainingWaitsForACopyOnlyBeforeItChangesTheTensor) {
  begin(std::uint64_t{1} << 30);
  snapshot_->copy_ahead();  // It returns while the device still computes.
  auto changed = std::async(std::launch::async, [&] {
    for (std::size_t i = 0; i < tensors_.size(); ++i) change(i);
  });
  EXPECT_EQ(changed.wait_for(50ms), std::future_status::timeout);
  open();
  changed.get();
  for (std::size_t i = 0; i < tensors_.size(); ++i) expect_written(i);
  EXPECT_EQ(reader_->bytes, std::vector<std::size_t>(3, kBytes));  // Each tensor has left the device once.
  EXPECT_EQ(snapshot_->most_copied(), 3 * kBytes);
}

TEST_F(DeviceSnapshotTest, SmallTensorsOfADeviceAndLargeOnesOfTheHostShareNoMemory) {
  begin(std::uint64_t{1} << 30, 0);
  open();
  tensors_ = {at::arange(8, at::kFloat), at::arange(kMany, at::kDouble)};
  for (const at::Tensor& tensor : tensors_) sources_.push_back({tensor, 0, tensor.numel()});
  snapshot_->add(sources_, tensors_, {});
  EXPECT_TRUE(snapshot_->read(sources_[0], 0).size() == 32);
  const std::span<const std::byte> piece = snapshot_->read(sources_[1], 0);
  // What the snapshot keeps for a small tensor would not hold a piece of a large one.
  EXPECT_NE(piece.data(), tensors_[1].const_data_ptr());
  EXPECT_TRUE(read_all(*snapshot_, sources_[0]).equal(tensors_[0]));
  EXPECT_TRUE(read_all(*snapshot_, sources_[1]).equal(tensors_[1]));
}

TEST_F(DeviceSnapshotTest, TwoThreadsMayWaitForRoom) {
  constexpr std::int64_t kPart = 1 << 14;
  begin(100 * kPart * sizeof(float), 0);
  open();
  const std::vector<std::int64_t> sizes = {30 * kPart, 30 * kPart, 100 * kPart};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    tensors_.push_back(at::full({sizes[i]}, static_cast<double>(i), at::kFloat));
    sources_.push_back({tensors_[i], 0, sizes[i]});
  }
  const at::Tensor on_host = at::full({30 * kPart}, 7, at::kDouble);
  sources_.push_back({on_host, 0, on_host.numel()});
  std::vector<at::Tensor> all = tensors_;
  all.push_back(on_host);
  snapshot_->add(sources_, all, {});
  snapshot_->copy_ahead();  // The first two tensors are copied, and there is no room for the third one.
  auto changed = std::async(std::launch::async, [&] {
    snapshot_->keep(on_host);  // There is no room for it either, before the first tensor has been written.
    on_host.fill_(-1);
    change(2);
  });
  auto written = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(50ms);  // Both wait by now.
    EXPECT_TRUE(read_all(*snapshot_, sources_[0]).equal(at::full({sizes[0]}, 0, at::kFloat)));
    std::this_thread::sleep_for(50ms);  // The tensor of the host has the room.
    for (const std::size_t i : {std::size_t{2}, std::size_t{1}})
      EXPECT_TRUE(read_all(*snapshot_, sources_[i]).equal(at::full({sizes[i]}, static_cast<double>(i))));
    EXPECT_TRUE(read_all(*snapshot_, sources_[3]).equal(at::full({on_host.numel()}, 7, at::kDouble)));
  });
  EXPECT_EQ(written.wait_for(30s), std::future_status::ready);
  EXPECT_EQ(changed.wait_for(30s), std::future_status::ready);
  snapshot_->abandon();  // If they are stuck, the test fails and does not hang.
}

TEST_F(DeviceSnapshotTest, TheWriterTakesWhatIsCopiedAhead) {
  begin(std::uint64_t{1} << 30);
  snapshot_->copy_ahead();
  auto written = std::async(std::launch::async, [&] {
    for (std::size_t i = 0; i < tensors_.size(); ++i) expect_written(i);
  });
  EXPECT_EQ(written.wait_for(50ms), std::future_status::timeout);
  open();
  written.get();
  EXPECT_EQ(reader_->bytes, std::vector<std::size_t>(3, kBytes));
}

// The thread that copies ahead waits for the writer, and the writer does not wait for it.
TEST_F(DeviceSnapshotTest, WithoutRoomTheWriterReadsTheDeviceItself) {
  for (const std::uint64_t most : {std::uint64_t{0}, kBytes, 2 * kBytes}) {
    tensors_.clear();
    sources_.clear();
    begin(most, 6);
    open();
    snapshot_->copy_ahead();
    auto changed = std::async(std::launch::async, [&] {
      for (const std::size_t i : {5, 0, 3, 4, 1, 2}) change(i);
    });
    for (std::size_t i = 0; i < tensors_.size(); ++i) expect_written(i);
    changed.get();
    EXPECT_LE(snapshot_->most_copied(), most);
  }
}

TEST_F(DeviceSnapshotTest, AFailedCopyIsTheErrorOfTheNextChange) {
  begin(std::uint64_t{1} << 30);
  reader_->fails = true;
  open();
  snapshot_->copy_ahead();
  EXPECT_THROW(snapshot_->keep(tensors_[1]), std::runtime_error);
  EXPECT_THROW(snapshot_->read(sources_[0], 0), std::runtime_error);
  snapshot_->abandon();
  snapshot_->keep(tensors_[1]);
}

TEST_F(DeviceSnapshotTest, AnAbandonedSnapshotEndsItsThread) {
  begin(kBytes);  // The thread waits for a writer who never comes.
  open();
  snapshot_->copy_ahead();
  snapshot_->keep(tensors_[0]);
  snapshot_.reset();
}

TEST_F(DeviceSnapshotTest, OnlyTheRangeOfTheSourcesIsCopied) {
  begin(std::uint64_t{1} << 30, 0);
  open();
  const at::Tensor tensor = at::arange(10, at::kFloat);
  sources_ = {{tensor, 2, 3}, {tensor, 6, 2}};
  snapshot_->add(sources_, {{tensor}}, {});
  snapshot_->copy_ahead();
  snapshot_->keep(tensor);
  tensor.zero_();
  EXPECT_TRUE(read_all(*snapshot_, sources_[1]).equal(at::arange(6, 8, at::kFloat)));
  EXPECT_TRUE(read_all(*snapshot_, sources_[0]).equal(at::arange(2, 5, at::kFloat)));
  EXPECT_EQ(snapshot_->most_copied(), 6 * sizeof(float));
}

TEST_F(DeviceSnapshotTest, AConstantTensorIsReadInPieces) {
  begin(0, 0);
  open();
  const at::Tensor frozen = at::arange((std::int64_t{20} << 20) + 3, at::kFloat);  // 80 MiB.
  sources_ = {{frozen, 1, frozen.numel() - 1}};
  snapshot_->add(sources_, {}, {{frozen}});
  snapshot_->copy_ahead();
  EXPECT_TRUE(read_all(*snapshot_, sources_[0]).equal(frozen.narrow(0, 1, frozen.numel() - 1)));
  EXPECT_EQ(reader_->bytes.size(), 2U);
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
