#include "train/device/saved_activations.hpp"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace accel::train {
namespace {

bool can_move(const at::Tensor& tensor, const StorageDevice& storage) {
  return tensor.device() == storage.compute() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         !tensor.is_conj() && !tensor.is_neg() && tensor.numel() > 0;
}

/// Returns the part of `tensor` that expand() does not repeat.
at::Tensor once(at::Tensor tensor) {
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0) tensor = tensor.narrow(dim, 0, 1);
  }
  return tensor;
}

std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  return at::infer_dense_strides(tensor.sizes(), tensor.strides());
}

}  // namespace

OffloadedActivations::OffloadedActivations(std::shared_ptr<StorageDevice> storage,
                                           std::span<const at::Tensor> tensors)
    : storage_(std::move(storage)) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    Entry& entry = entries_.emplace_back();
    entry.same_as = static_cast<std::size_t>(
        std::find_if(entries_.begin(), std::prev(entries_.end()),
                     [&](const Entry& other) { return other.original.is_same(tensor); }) -
        entries_.begin());
    if (entry.same_as + 1 < entries_.size()) continue;
    entry.original = tensor;
    entry.version = tensor._version();
    if (!can_move(tensor, *storage_)) continue;
    const at::Tensor part = once(tensor.detach());
    entry.sizes = tensor.sizes().vec();
    entry.stored = storage_->empty(part.sizes(), dense_strides(part), part.scalar_type());
    entry.copy = storage_->store(entry.stored, part);
  }
}

OffloadedActivations::~OffloadedActivations() {
  try {
    for (const Entry& entry : entries_) {
      if (entry.copy != nullptr) entry.copy->wait_on_stream();
    }
  } catch (const std::exception&) {
    // The device has failed. Whoever waits for it gets the error.
  }
}

void OffloadedActivations::release() {
  for (Entry& entry : entries_) {
    if (entry.copy == nullptr) continue;
    std::exchange(entry.copy, nullptr)->wait_on_stream();
    entry.original.reset();
  }
}

void OffloadedActivations::fetch() {
  if (std::exchange(fetched_, true)) return;
  const at::NoGradGuard no_grad;
  for (Entry& entry : entries_) {
    if (!entry.stored.defined()) continue;
    entry.back =
        at::empty_strided(entry.stored.sizes(), entry.stored.strides(),
                          at::TensorOptions().dtype(entry.stored.scalar_type()).device(storage_->compute()));
    entry.copy = storage_->fetch(entry.back, entry.stored);
  }
}

std::vector<at::Tensor> OffloadedActivations::take() {
  fetch();
  taken_ = true;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (Entry& entry : entries_) {
    const Entry& first = entries_[entry.same_as];
    if (!first.stored.defined()) {
      if (first.original._version() != first.version)
        throw Error(ErrorKind::kUsage, "a tensor that backward needs was changed in place after forward");
      tensors.push_back(first.original.detach());
      continue;
    }
    if (entry.copy != nullptr) std::exchange(entry.copy, nullptr)->wait_on_stream();
    tensors.push_back(first.back.expand(first.sizes).detach());
  }
  for (Entry& entry : entries_) entry.back.reset();
  return tensors;
}

std::shared_ptr<OffloadedActivations> UnitActivations::offload(std::span<const at::Tensor> tensors) {
  std::erase_if(calls_, [](const auto& call) { return call.expired(); });
  auto activations = std::make_shared<OffloadedActivations>(storage_, tensors);
  calls_.push_back(activations);
  return activations;
}

void UnitActivations::fetch_next() {
  for (; !calls_.empty(); calls_.pop_back()) {
    const std::shared_ptr<OffloadedActivations> activations = calls_.back().lock();
    if (activations == nullptr || activations->is_taken()) continue;
    activations->fetch();
    return;
  }
}

}  // namespace accel::train
