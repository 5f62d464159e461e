#include "train/fsdp/buffers/comm_hook.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace accel::train {
namespace {

std::optional<at::ScalarType> dtype_of(config::CommHookType type) {
  switch (type) {
    case config::CommHookType::kFp16:
      return at::kHalf;
    case config::CommHookType::kBf16:
      return at::kBFloat16;
    case config::CommHookType::kNo:
    case config::CommHookType::kPowerSgd:
      break;
  }
  return std::nullopt;
}

void copy_back(at::Tensor& to, const at::Tensor& from) {
  if (!to.is_same(from)) to.copy_(from);
}

}  // namespace

std::unique_ptr<CommHook> CommHook::make(const config::DdpConfig& config, const FlatLayout& layout,
                                         const std::shared_ptr<NumpyRandom>& seeds) {
  if (config.comm_hook == config::CommHookType::kNo) return nullptr;
  return std::make_unique<CommHook>(config, layout, seeds);
}

CommHook::CommHook(const config::DdpConfig& config, const FlatLayout& layout,
                   const std::shared_ptr<NumpyRandom>& seeds)
    : outer_dtype_(dtype_of(config.comm_wrapper)), inner_dtype_(dtype_of(config.comm_hook)) {
  if (config.comm_hook == config::CommHookType::kPowerSgd) low_rank_.emplace(layout, config.power_sgd, seeds);
}

void CommHook::start(Group& group, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  gradient_ = gradient;
  outer_ = outer_dtype_ ? gradient.to(*outer_dtype_) : gradient;
  if (low_rank_) return low_rank_->start(group, outer_);
  inner_ = outer_.to(*inner_dtype_);
  inner_.div_(group.size());
  pending_ = group.all_reduce_sum(inner_);
}

void CommHook::finish() {
  const at::NoGradGuard no_grad;
  if (low_rank_) {
    low_rank_->finish();
  } else {
    pending_.wait();
    copy_back(outer_, inner_);
  }
  copy_back(gradient_, outer_);
  inner_.reset();
  outer_.reset();
  gradient_.reset();
}

void CommHook::reset() {
  if (low_rank_) low_rank_->reset();
}

}  // namespace accel::train
