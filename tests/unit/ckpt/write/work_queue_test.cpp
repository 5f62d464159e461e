#include "ckpt/write/work_queue.hpp"

#include <gmock/gmock.h>

#include <numeric>

#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class WorkQueueTest : public ::testing::Test {
 protected:
  // Nothing is read, so the tensors may have any size.
  WorkQueueTest()
      : source_(dir_.path(), {{{"a"}, DType::kFloat32, {1024, 1024, 25}, ""}, {{"b"}, DType::kInt8, {3}, ""}},
                std::vector<StoredTensor>{{"a", DType::kFloat32, {1024, 1024, 25}, {}},
                                          {"b", DType::kInt8, {3}, {}}}) {
    source_.before_locate = [this](std::size_t tensor) { located_.push_back(tensor); };
  }

  void add(std::uint64_t bytes, decltype(OutputSegment::content) content, bool in_order = false) {
    file_.segments.push_back({file_.bytes, bytes, std::move(content)});
    file_.bytes += bytes;
    in_order_.push_back(in_order);
  }

  testing::TempDir dir_;
  testing::FakeCheckpoint source_;
  OutputFile file_;
  std::vector<bool> in_order_;
  std::vector<std::size_t> located_;
};

TEST_F(WorkQueueTest, NothingToDo) {
  WorkQueue queue(source_, file_, in_order_);
  EXPECT_TRUE(queue.take().empty());
  EXPECT_TRUE(queue.take().empty());
}

TEST_F(WorkQueueTest, SmallSegmentsComeTogether) {
  for (int i = 0; i < 60; ++i) add(3, TensorContent{1, DType::kInt8, {}});
  add(5, "hello");
  add(0, "");
  WorkQueue queue(source_, file_, in_order_);
  const std::vector<WorkItem> batch = queue.take();
  ASSERT_EQ(batch.size(), 62U);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    EXPECT_EQ(batch[i].segment, i);
    EXPECT_EQ(batch[i].begin, 0);
    EXPECT_EQ(static_cast<std::uint64_t>(batch[i].end), file_.segments[i].bytes);
    EXPECT_EQ(batch[i].stored, nullptr);
  }
  EXPECT_TRUE(located_.empty());
  EXPECT_TRUE(queue.take().empty());
}

// There are enough items for several threads.
TEST_F(WorkQueueTest, NotTooManySegmentsComeTogether) {
  for (int i = 0; i < 100; ++i) add(3, TensorContent{1, DType::kInt8, {}});
  WorkQueue queue(source_, file_, in_order_);
  EXPECT_EQ(queue.take().size(), 64U);
  EXPECT_EQ(queue.take().size(), 36U);
  EXPECT_TRUE(queue.take().empty());
}

TEST_F(WorkQueueTest, LargeTensorsComeInRanges) {
  add(7, "a title");
  add(100 * kMiB, TensorContent{0, DType::kFloat32, {}});
  add(3, TensorContent{1, DType::kInt8, {}});
  WorkQueue queue(source_, file_, in_order_);
  std::vector<WorkItem> items;
  for (std::vector<WorkItem> batch = queue.take(); !batch.empty(); batch = queue.take()) {
    EXPECT_LE(batch.size(), 3U);
    items.insert(items.end(), batch.begin(), batch.end());
  }
  ASSERT_EQ(items.size(), 6U);
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(items[i].segment, 1U);
    EXPECT_EQ(items[i].begin, static_cast<std::int64_t>((i - 1) * 8 * kMiB));
    EXPECT_EQ(items[i].end, static_cast<std::int64_t>(std::min(i * 8, std::uint64_t{25}) * kMiB));
    EXPECT_EQ(items[i].stored, items[1].stored);
  }
  EXPECT_EQ(items[5].segment, 2U);
  EXPECT_EQ(located_, std::vector<std::size_t>{0});  // The tensor is located once for all its ranges.
}

TEST_F(WorkQueueTest, RecordsOfArchivesAreTakenWhole) {
  add(100 * kMiB, TensorContent{0, DType::kFloat32, {}}, true);
  add(100 * kMiB, FileContent{"x", 0}, true);
  WorkQueue queue(source_, file_, in_order_);
  for (const std::size_t segment : {0, 1}) {
    const std::vector<WorkItem> batch = queue.take();
    ASSERT_EQ(batch.size(), 1U);
    EXPECT_EQ(batch[0].segment, segment);
    EXPECT_EQ(batch[0].end, static_cast<std::int64_t>(segment == 0 ? 25 * kMiB : 100 * kMiB));
  }
  EXPECT_TRUE(queue.take().empty());
}

// A conversion changes the bytes of a segment, not the number of its elements.
TEST_F(WorkQueueTest, CountsElementsOfTheWrittenType) {
  add(50 * kMiB, TensorContent{0, DType::kFloat16, {}});
  WorkQueue queue(source_, file_, in_order_);
  const std::vector<WorkItem> first = queue.take();
  EXPECT_EQ(first.at(0).end, static_cast<std::int64_t>(16 * kMiB));
  EXPECT_EQ(queue.take().at(0).end, static_cast<std::int64_t>(25 * kMiB));
}

TEST_F(WorkQueueTest, ClosingEndsIt) {
  add(100 * kMiB, TensorContent{0, DType::kFloat32, {}});
  WorkQueue queue(source_, file_, in_order_);
  EXPECT_FALSE(queue.take().empty());
  queue.close();
  EXPECT_TRUE(queue.take().empty());
}

TEST_F(WorkQueueTest, AFailureToLocateEndsItForAll) {
  add(100 * kMiB, TensorContent{0, DType::kFloat32, {}});
  add(3, TensorContent{1, DType::kInt8, {}});
  source_.before_locate = [](std::size_t) { throw Error(ErrorKind::kCorrupt, "broken"); };
  WorkQueue queue(source_, file_, in_order_);
  EXPECT_EQ(error_of(ErrorKind::kCorrupt, [&] { (void)queue.take(); }), "broken");
  EXPECT_TRUE(queue.take().empty());
}

TEST_F(WorkQueueTest, RejectsASegmentThatIsNotWhatItIsMadeOf) {
  const auto reject = [&](std::uint64_t bytes, TensorContent content) {
    file_.segments = {{0, bytes, std::move(content)}};
    in_order_ = {false};
    WorkQueue queue(source_, file_, in_order_);
    EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)queue.take(); }), HasSubstr("tensor 'b'"));
  };
  reject(4, {1, DType::kInt8, {}});
  reject(2, {1, DType::kInt8, {}});
  reject(3, {1, DType::kInt16, {}});
  reject(2, {1, DType::kInt8, {{{0}, {1}}, {{2}, {1}}, {{1}, {1}}}});
}

}  // namespace
}  // namespace accel::ckpt
