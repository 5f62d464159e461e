#include "ckpt/write/work_queue.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel::ckpt {
namespace {

// The size of a batch, and of the ranges of a large tensor. It is large enough that a lock per batch is
// cheap, and small enough that all threads end at about the same time.
constexpr std::uint64_t kBatchBytes = std::uint64_t{32} << 20;
constexpr std::size_t kBatchSegments = 64;

// Throws unless the segment is as large as its tensor: else it would get a hole, or never be complete.
void check_size(const TensorEntry& entry, const TensorContent& content, const OutputSegment& segment) {
  std::int64_t elements = content.boxes.empty() ? checked_numel(entry.shape) : 0;
  for (const Box& box : content.boxes) elements = checked_add(elements, box.numel());
  const std::uint64_t bytes = checked_mul(static_cast<std::uint64_t>(elements), item_bytes(content.dtype));
  if (bytes == segment.bytes) return;
  throw Error(ErrorKind::kFailure,
              fmt::format("tensor '{}': {} elements of {} are planned as {} bytes", entry.name, elements,
                          torch_name(content.dtype), segment.bytes));
}

}  // namespace

WorkQueue::WorkQueue(Checkpoint& source, const OutputFile& file, const std::vector<bool>& in_order)
    : source_(source), file_(file), in_order_(in_order) {}

void WorkQueue::add(std::vector<WorkItem>& batch, std::uint64_t& batch_bytes) {
  const OutputSegment& segment = file_.segments[segment_];
  WorkItem item{segment_, element_, static_cast<std::int64_t>(segment.bytes), nullptr};
  std::uint64_t unit_bytes = 1;
  if (const auto* tensor = std::get_if<TensorContent>(&segment.content)) {
    if (element_ == 0) check_size(source_.tensors().at(tensor->source), *tensor, segment);
    if (segment.bytes > kBatchBytes) item.stored = located(tensor->source);
    unit_bytes = item_bytes(tensor->dtype);
    item.end = static_cast<std::int64_t>(segment.bytes / unit_bytes);
  }
  if (!in_order_[segment_]) {
    item.end = std::min(item.end, item.begin + static_cast<std::int64_t>(kBatchBytes / unit_bytes));
  }
  const std::uint64_t bytes = static_cast<std::uint64_t>(item.end - item.begin) * unit_bytes;
  batch_bytes += bytes;
  element_ = item.end;
  if (static_cast<std::uint64_t>(element_) * unit_bytes == segment.bytes) {
    ++segment_;
    element_ = 0;
  }
  batch.push_back(std::move(item));
}

const std::shared_ptr<const StoredTensor>& WorkQueue::located(std::size_t source) {
  if (!located_ || located_index_ != source) {
    located_ = std::make_shared<const StoredTensor>(source_.locate(source));
    located_index_ = source;
  }
  return located_;
}

std::vector<WorkItem> WorkQueue::take() {
  const std::lock_guard lock(mutex_);
  std::vector<WorkItem> batch;
  std::uint64_t bytes = 0;
  while (segment_ < file_.segments.size() && bytes < kBatchBytes && batch.size() < kBatchSegments) {
    try {
      add(batch, bytes);
    } catch (Error&) {
      segment_ = file_.segments.size();
      throw;
    }
  }
  return batch;
}

void WorkQueue::close() {
  const std::lock_guard lock(mutex_);
  segment_ = file_.segments.size();
}

}  // namespace accel::ckpt
