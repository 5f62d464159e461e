#include "train/checkpoint/snapshot.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/files/flight_record.hpp"
#include "base/host/large_memory.hpp"

namespace accel::train {
namespace {

/// The bytes that read() copies at a time, while keep() waits.
constexpr std::uint64_t kPieceBytes = std::uint64_t{512} << 10;
constexpr std::uint64_t kDevicePieceBytes = std::uint64_t{64} << 20;
constexpr std::size_t kLargePagesFrom = std::size_t{8} << 20;

at::Tensor in_host_memory(const at::Tensor& tensor) {
  const flight::HostSync sync(!tensor.is_cpu());
  return tensor.is_cpu() ? tensor.clone() : tensor.to(at::kCPU);
}

/// Memory of the host for a copy of `tensor`. The pages of many megabytes are new, and large ones cost fewer
/// faults.
at::Tensor memory_for(const at::Tensor& tensor) {
  const at::TensorOptions options = at::TensorOptions().dtype(tensor.scalar_type());
  if (tensor.nbytes() < kLargePagesFrom) return at::empty(tensor.sizes(), options);
  return at::from_blob(allocate_large(tensor.nbytes()), tensor.sizes(), &free_large, options);
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

bool has(std::span<const at::Tensor> tensors, const at::Tensor& tensor) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& t) { return t.is_same(tensor); });
}

}  // namespace

Snapshot::~Snapshot() {
  abandon();
  if (copier_.joinable()) copier_.join();
}

void Snapshot::add(std::vector<ItemSource>& sources, std::span<const at::Tensor> changing,
                   std::span<const at::Tensor> constant) {
  const at::NoGradGuard no_grad;
  for (ItemSource& source : sources) {
    if (!source.tensor.defined() || has(constant, source.tensor)) continue;
    if (has(changing, source.tensor)) {
      Entry& entry = entries_[source.tensor.unsafeGetTensorImpl()];
      const std::int64_t end = source.begin + source.numel;
      if (entry.unread == 0) {
        entry.begin = source.begin;
        if (is_on_device(source.tensor)) ahead_.push_back(source.tensor);
      }
      entry.begin = std::min(entry.begin, source.begin);
      entry.end = std::max(entry.end, end);
      ++entry.unread;
    } else {
      source.tensor = in_host_memory(source.tensor.reshape({-1}).narrow(0, source.begin, source.numel));
      source.begin = 0;
    }
  }
}

at::Tensor Snapshot::copy_of(const at::Tensor& tensor) const {
  at::Tensor copy = memory_for(tensor);
  if (is_on_device(tensor)) {
    device_->read(bytes_of(copy), tensor);
  } else {
    copy.copy_(tensor);
  }
  return copy;
}

void Snapshot::copy(std::unique_lock<std::mutex>& lock, const at::Tensor& tensor, Entry& entry) {
  const at::NoGradGuard no_grad;
  const at::Tensor part = tensor.narrow(0, entry.begin, entry.end - entry.begin);
  const std::uint64_t bytes = part.nbytes();
  const auto can_go_on = [&] { return is_safe(entry) || copied_ + bytes <= most_bytes_; };
  if (!can_go_on()) {
    ++waiting_for_room_;
    progress_.notify_all();
    progress_.wait(lock, can_go_on);
    --waiting_for_room_;
  }
  if (is_safe(entry)) return;
  copied_ += bytes;
  most_copied_ = std::max(most_copied_, copied_);
  // The writer may go on reading the tensor itself.
  lock.unlock();
  at::Tensor copy = copy_of(part);
  lock.lock();
  if (entry.unread > 0) {
    entry.copy = std::move(copy);
  } else {
    copied_ -= bytes;
  }
  progress_.notify_all();
}

void Snapshot::copy_ahead() {
  if (ahead_.empty()) return;
  const std::lock_guard start(mutex_);  // The writer may run already.
  copier_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    try {
      for (const at::Tensor& tensor : ahead_) copy(lock, tensor, entries_.at(tensor.unsafeGetTensorImpl()));
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      failure_ = std::current_exception();
    }
    copies_ahead_ = false;
    progress_.notify_all();
  });
  // Not before: without the thread nobody would end the wait for it.
  copies_ahead_ = true;
}

void Snapshot::keep(const at::Tensor& tensor) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(tensor.unsafeGetTensorImpl());
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (is_on_device(tensor)) progress_.wait(lock, [&] { return is_safe(entry) || !copies_ahead_; });
  if (failure_ != nullptr && !is_safe(entry)) std::rethrow_exception(failure_);
  copy(lock, tensor, entry);
}

std::span<const std::byte> Snapshot::read_from_device(const ItemSource& source, std::uint64_t offset) {
  const auto item = static_cast<std::int64_t>(source.tensor.element_size());
  const std::int64_t first = static_cast<std::int64_t>(offset) / item;
  const std::int64_t count =
      std::min(source.numel - first, static_cast<std::int64_t>(kDevicePieceBytes) / item);
  const at::Tensor part = source.tensor.narrow(0, source.begin + first, count);
  if (!piece_.defined() || piece_.nbytes() < part.nbytes())
    piece_ = at::empty({static_cast<std::int64_t>(part.nbytes())}, at::kByte);
  const std::span<std::byte> bytes = bytes_of(piece_).first(part.nbytes());
  device_->read(bytes, part);
  return bytes;
}

std::span<const std::byte> Snapshot::read(const ItemSource& source, std::uint64_t offset) {
  const at::NoGradGuard no_grad;
  const std::uint64_t item = source.tensor.element_size();
  const std::uint64_t at = static_cast<std::uint64_t>(source.begin) * item + offset;
  const std::uint64_t left = static_cast<std::uint64_t>(source.numel) * item - offset;
  const std::uint64_t count = std::min(left, kPieceBytes);
  const auto data_of = [&](const at::Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.const_data_ptr());
  };
  const auto found = entries_.find(source.tensor.unsafeGetTensorImpl());
  if (found == entries_.end()) {
    if (is_on_device(source.tensor)) return read_from_device(source, offset);
    return {data_of(source.tensor) + at, count};
  }
  const Entry& entry = found->second;
  std::unique_lock lock(mutex_);
  if (is_on_device(source.tensor)) {
    // The thread that copies ahead comes to the tensor soon, unless it waits for the writer.
    progress_.wait(
        lock, [&] { return entry.copy.defined() || !copies_ahead_ || waiting_for_room_ > 0 || abandoned_; });
    if (!entry.copy.defined()) return read_from_device(source, offset);
  }
  if (entry.copy.defined())
    return {data_of(entry.copy) + at - static_cast<std::uint64_t>(entry.begin) * item, count};
  if (!piece_.defined() || piece_.nbytes() < count)
    piece_ = at::empty({static_cast<std::int64_t>(kPieceBytes)}, at::kByte);
  std::memcpy(piece_.mutable_data_ptr(), data_of(source.tensor) + at, count);
  return {data_of(piece_), count};
}

void Snapshot::written(const ItemSource& source) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(source.tensor.unsafeGetTensorImpl());
  if (found == entries_.end() || --found->second.unread > 0) return;
  if (found->second.copy.defined()) copied_ -= found->second.copy.nbytes();
  found->second.copy.reset();
  progress_.notify_all();
}

void Snapshot::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  progress_.notify_all();
}

std::uint64_t Snapshot::most_copied() const {
  const std::lock_guard lock(mutex_);
  return most_copied_;
}

}  // namespace accel::train
