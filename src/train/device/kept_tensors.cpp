#include "train/device/kept_tensors.hpp"

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

/// Without what expand() repeats.
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

KeptTensors::KeptTensors(std::shared_ptr<StorageDevice> storage, std::span<const at::Tensor> tensors)
    : storage_(std::move(storage)) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    Kept& kept = kept_.emplace_back();
    kept.same_as = static_cast<std::size_t>(
        std::find_if(kept_.begin(), std::prev(kept_.end()),
                     [&](const Kept& other) { return other.original.is_same(tensor); }) -
        kept_.begin());
    if (kept.same_as + 1 < kept_.size()) continue;
    kept.original = tensor;
    kept.version = tensor._version();
    if (!can_move(tensor, *storage_)) continue;
    const at::Tensor part = once(tensor.detach());
    kept.sizes = tensor.sizes().vec();
    kept.stored = storage_->empty(part.sizes(), dense_strides(part), part.scalar_type());
    kept.copy = storage_->store(kept.stored, part);
  }
}

KeptTensors::~KeptTensors() {
  try {
    for (const Kept& kept : kept_) {
      if (kept.copy != nullptr) kept.copy->join();
    }
  } catch (const std::exception&) {  // The device has failed, which whoever waits for it is told.
  }
}

void KeptTensors::let_go() {
  for (Kept& kept : kept_) {
    if (kept.copy == nullptr) continue;
    std::exchange(kept.copy, nullptr)->join();
    kept.original.reset();
  }
}

void KeptTensors::fetch() {
  if (std::exchange(fetched_, true)) return;
  const at::NoGradGuard no_grad;
  for (Kept& kept : kept_) {
    if (!kept.stored.defined()) continue;
    kept.back =
        at::empty_strided(kept.stored.sizes(), kept.stored.strides(),
                          at::TensorOptions().dtype(kept.stored.scalar_type()).device(storage_->compute()));
    kept.copy = storage_->fetch(kept.back, kept.stored);
  }
}

std::vector<at::Tensor> KeptTensors::take() {
  fetch();
  taken_ = true;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (Kept& kept : kept_) {
    const Kept& first = kept_[kept.same_as];
    if (!first.stored.defined()) {
      if (first.original._version() != first.version)
        throw Error(ErrorKind::kUsage,
                    "a tensor that is needed in backward was changed in place after forward");
      tensors.push_back(first.original.detach());
      continue;
    }
    if (kept.copy != nullptr) std::exchange(kept.copy, nullptr)->join();
    tensors.push_back(first.back.expand(first.sizes).detach());
  }
  for (Kept& kept : kept_) kept.back.reset();
  return tensors;
}

std::shared_ptr<KeptTensors> KeptOfUnit::keep(std::span<const at::Tensor> tensors) {
  std::erase_if(calls_, [](const auto& call) { return call.expired(); });
  auto kept = std::make_shared<KeptTensors>(storage_, tensors);
  calls_.push_back(kept);
  return kept;
}

void KeptOfUnit::fetch_next() {
  for (; !calls_.empty(); calls_.pop_back()) {
    const std::shared_ptr<KeptTensors> kept = calls_.back().lock();
    if (kept == nullptr || kept->is_taken()) continue;
    kept->fetch();
    return;
  }
}

}  // namespace accel::train
