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
constexpr std::size_t kLargePagesFrom = std::size_t{8} << 20;

at::Tensor in_host_memory(const at::Tensor& tensor) {
  const flight::HostSync sync(!tensor.is_cpu());
  return tensor.is_cpu() ? tensor.clone() : tensor.to(at::kCPU);
}

/// A copy of a tensor of many megabytes. Its pages are new, and large ones cost fewer faults.
at::Tensor large_copy(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.nbytes() < kLargePagesFrom) return in_host_memory(tensor);
  at::Tensor copy = at::from_blob(allocate_large(tensor.nbytes()), tensor.sizes(), &free_large,
                                  tensor.options().requires_grad(false));
  return copy.copy_(tensor);
}

bool has(std::span<const at::Tensor> tensors, const at::Tensor& tensor) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& t) { return t.is_same(tensor); });
}

}  // namespace

void Snapshot::add(std::vector<ItemSource>& sources, std::span<const at::Tensor> changing,
                   std::span<const at::Tensor> constant) {
  const at::NoGradGuard no_grad;
  for (ItemSource& source : sources) {
    if (!source.tensor.defined() || has(constant, source.tensor)) continue;
    if (has(changing, source.tensor)) {
      ++entries_[source.tensor.unsafeGetTensorImpl()].unread;
    } else {
      source.tensor = in_host_memory(source.tensor.reshape({-1}).narrow(0, source.begin, source.numel));
      source.begin = 0;
    }
  }
}

void Snapshot::keep(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const std::uint64_t bytes = tensor.nbytes();
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(tensor.unsafeGetTensorImpl());
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  progress_.wait(lock, [&] {
    return abandoned_ || entry.unread == 0 || entry.copy.defined() || copied_ + bytes <= most_bytes_;
  });
  if (abandoned_ || entry.unread == 0 || entry.copy.defined()) return;
  copied_ += bytes;
  most_copied_ = std::max(most_copied_, copied_);
  // The writer may go on reading the tensor itself.
  lock.unlock();
  at::Tensor copy = large_copy(tensor);
  lock.lock();
  if (entry.unread > 0) {
    entry.copy = std::move(copy);
  } else {
    copied_ -= bytes;
  }
}

std::span<const std::byte> Snapshot::read(const ItemSource& source, std::uint64_t offset) {
  const at::NoGradGuard no_grad;
  const std::uint64_t item = source.tensor.element_size();
  const std::uint64_t at = static_cast<std::uint64_t>(source.begin) * item + offset;
  const std::uint64_t left = static_cast<std::uint64_t>(source.numel) * item - offset;
  const std::uint64_t count = std::min(left, kPieceBytes);
  const auto bytes_of = [&](const at::Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.const_data_ptr());
  };
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(source.tensor.unsafeGetTensorImpl());
  if (found != entries_.end() && found->second.copy.defined())
    return {bytes_of(found->second.copy) + at, count};
  if (!source.tensor.is_cpu()) {
    // A copy from a device waits for what the device has to do, so there is one for each source.
    if (offset == 0) from_device_ = in_host_memory(source.tensor.narrow(0, source.begin, source.numel));
    return {bytes_of(from_device_) + offset, left};
  }
  if (found == entries_.end()) return {bytes_of(source.tensor) + at, count};
  if (!piece_.defined()) piece_ = at::empty({static_cast<std::int64_t>(kPieceBytes)}, at::kByte);
  std::memcpy(piece_.mutable_data_ptr(), bytes_of(source.tensor) + at, count);
  return {bytes_of(piece_), count};
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
