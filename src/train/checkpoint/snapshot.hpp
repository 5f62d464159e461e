#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "train/checkpoint/state_items.hpp"

namespace accel::train {

/// The values of a rank's tensors at one moment, for a thread that writes them while training goes on.
///
/// Between two steps of the optimizer shards and moments do not change, so they are read where they are.
/// Training calls keep() before it changes one, which copies it if it has not been written yet. A tensor that
/// is written in time is never copied.
class Snapshot {
 public:
  /// keep() holds at most `most_bytes` of copies in memory; it waits for the writer if more are needed.
  explicit Snapshot(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Adds what will be read of `sources`, in this order. A source whose tensor is in `changing` is read where
  /// it is until keep() copies the tensor, and one in `constant` at any time. Any other is copied here. Call
  /// it before the writer starts.
  void add(std::vector<ItemSource>& sources, std::span<const at::Tensor> changing,
           std::span<const at::Tensor> constant);

  /// Training calls this before it changes `tensor`. It returns when the values are safe: written, or copied.
  /// Called by the training's thread alone.
  void keep(const at::Tensor& tensor);

  /// Returns the next bytes of `source` from byte `offset` on, as they were at the moment of the snapshot.
  /// They are valid until the next call. Called by the writer's thread alone.
  std::span<const std::byte> read(const ItemSource& source, std::uint64_t offset);
  /// The writer has all of `source`.
  void written(const ItemSource& source);
  /// The writer reads nothing any more, so keep() returns at once.
  void abandon();

  /// The most bytes that copies took at a time.
  [[nodiscard]] std::uint64_t most_copied() const;

 private:
  struct Entry {
    std::size_t unread = 0;  ///< The number of sources that are not written.
    at::Tensor copy;         ///< Undefined while the tensor itself is read.
  };

  mutable std::mutex mutex_;
  std::condition_variable progress_;
  std::unordered_map<const at::TensorImpl*, Entry> entries_;
  std::uint64_t most_bytes_;
  std::uint64_t copied_ = 0;  ///< Bytes of copies in memory.
  std::uint64_t most_copied_ = 0;
  bool abandoned_ = false;
  at::Tensor piece_;        ///< What read() returned of a tensor that may change.
  at::Tensor from_device_;  ///< A source that is on a device, in host memory.
};

}  // namespace accel::train
