#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "train/checkpoint/state_items.hpp"
#include "train/device/device_reader.hpp"

namespace accel::train {

/// The values of a rank's tensors at one moment, for a thread that writes them while training goes on.
///
/// Between two steps of the optimizer shards and moments do not change, so they are read where they are.
/// Training calls keep() before it changes one, which copies it if it has not been written yet. A tensor that
/// is written in time is never copied.
///
/// Tensors on a device are read through a DeviceReader. A thread of the snapshot copies them to the host
/// ahead of the writer, because a device gives its values faster than a disk takes them, and without work of
/// the processors that compute.
class Snapshot {
 public:
  /// At most `most_bytes` of copies are in memory at a time; what needs more waits for the writer. `device`
  /// is null if all tensors are on the CPU.
  explicit Snapshot(std::uint64_t most_bytes, std::unique_ptr<DeviceReader> device = nullptr)
      : most_bytes_(most_bytes), device_(std::move(device)) {}
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
  /// Abandons the snapshot and waits for its thread.
  ~Snapshot();

  /// Adds what will be read of `sources`, in this order. A source whose tensor is in `changing` is read where
  /// it is until keep() copies the tensor, and one in `constant` at any time. Any other is copied here. Call
  /// it before the writer starts.
  void add(std::vector<ItemSource>& sources, std::span<const at::Tensor> changing,
           std::span<const at::Tensor> constant);

  /// Starts the thread that copies the changing tensors of a device, in the order in which the writer reads
  /// them.
  void copy_ahead();
  /// Training calls this before it changes `tensor`. It returns when the values are safe: written, or copied.
  /// Called by the training's thread alone. Throws the error of the thread of copy_ahead(), if that has
  /// failed.
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
    std::int64_t begin = 0;  ///< The elements from the first to the last source.
    std::int64_t end = 0;
    at::Tensor copy;  ///< These elements; undefined while the tensor itself is read.
  };

  [[nodiscard]] bool is_on_device(const at::Tensor& tensor) const {
    return device_ != nullptr && device_->is_needed_for(tensor);
  }
  [[nodiscard]] bool is_safe(const Entry& entry) const {
    return abandoned_ || entry.unread == 0 || entry.copy.defined();
  }
  [[nodiscard]] at::Tensor copy_of(const at::Tensor& tensor) const;
  /// Copies the tensor of `entry` if there is room, or as soon as there is.
  void copy(std::unique_lock<std::mutex>& lock, const at::Tensor& tensor, Entry& entry);
  /// Reads a piece of a tensor on the device.
  std::span<const std::byte> read_from_device(const ItemSource& source, std::uint64_t offset);

  mutable std::mutex mutex_;
  std::condition_variable progress_;
  std::unordered_map<const at::TensorImpl*, Entry> entries_;
  std::uint64_t most_bytes_;
  std::unique_ptr<DeviceReader> device_;
  std::uint64_t copied_ = 0;  ///< Bytes of copies in memory.
  std::uint64_t most_copied_ = 0;
  bool abandoned_ = false;
  at::Tensor piece_;  ///< What read() returned of a tensor that may change, or that is on a device.

  std::vector<at::Tensor> ahead_;  ///< What the thread copies, in this order.
  bool copies_ahead_ = false;      ///< The thread runs.
  int waiting_for_room_ = 0;       ///< Threads that wait until the writer has given room.
  std::exception_ptr failure_;     ///< Its error.
  std::thread copier_;
};

}  // namespace accel::train
