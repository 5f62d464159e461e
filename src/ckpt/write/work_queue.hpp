#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// Elements [begin, end) of what a segment is made of; bytes, if that is no tensor.
struct WorkItem {
  std::size_t segment = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  /// Of a tensor that comes in several items: where the source's bytes are. A tensor that comes whole is
  /// located by who takes it.
  std::shared_ptr<const StoredTensor> stored;
};

/// Hands out the work of one file in batches, to any number of threads: neighbouring small segments together,
/// and large tensors in ranges, unless they must be read from front to back.
class WorkQueue {
 public:
  /// `in_order[i]`: segment i is taken whole, by one thread. Borrows all.
  WorkQueue(Checkpoint& source, const OutputFile& file, const std::vector<bool>& in_order);

  /// The next items, in the order of the file; none if there is nothing left. Tensors that come in several
  /// items are located here, once for all threads.
  [[nodiscard]] std::vector<WorkItem> take();
  /// From now on there is nothing left: a thread has failed.
  void close();

 private:
  void add(std::vector<WorkItem>& batch, std::uint64_t& batch_bytes);
  const std::shared_ptr<const StoredTensor>& located(std::size_t source);

  Checkpoint& source_;
  const OutputFile& file_;
  const std::vector<bool>& in_order_;
  std::mutex mutex_;
  std::size_t segment_ = 0;   // The next segment ...
  std::int64_t element_ = 0;  // ... and how much of it has been handed out.
  std::size_t located_index_ = 0;
  std::shared_ptr<const StoredTensor> located_;
};

}  // namespace accel::ckpt
