#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// A range [begin, end) of a segment: elements if the segment holds a tensor, else bytes.
struct WorkItem {
  std::size_t segment = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  /// Where the bytes of the tensor are in the source. Set only for a tensor that is split into several items;
  /// the thread that takes a whole tensor locates it itself.
  std::shared_ptr<const StoredTensor> stored;
};

/// Hands out the work of one file in batches to any number of threads. Small neighbouring segments come
/// together, and large tensors are split into ranges unless they must be read from front to back.
class WorkQueue {
 public:
  /// If `in_order[i]` is set, one thread takes the whole of segment i. The queue borrows its arguments.
  WorkQueue(Checkpoint& source, const OutputFile& file, const std::vector<bool>& in_order);

  /// Returns the next items in the order of the file, or none if no work is left. Tensors that are split into
  /// several items are located here, once for all threads.
  [[nodiscard]] std::vector<WorkItem> take();
  /// Drops the work that is left, because a thread has failed.
  void close();

 private:
  void add(std::vector<WorkItem>& batch, std::uint64_t& batch_bytes);
  const std::shared_ptr<const StoredTensor>& located(std::size_t source);

  Checkpoint& source_;
  const OutputFile& file_;
  const std::vector<bool>& in_order_;
  std::mutex mutex_;
  std::size_t segment_ = 0;   // The next segment.
  std::int64_t element_ = 0;  // The number of elements of the next segment that have been handed out.
  std::size_t located_index_ = 0;
  std::shared_ptr<const StoredTensor> located_;
};

}  // namespace accel::ckpt
