#include "train/graph/run/autocast.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include "train/graph/tensors.hpp"

namespace accel::train {

AutocastState AutocastState::now(at::DeviceType device) {
  return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}

AutocastScope::AutocastScope(const AutocastState& state, bool caches)
    : before_(AutocastState::now(state.device)), cached_before_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_enabled(state.device, state.enabled);
  at::autocast::set_autocast_dtype(state.device, state.dtype);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(caches);
}

AutocastScope::~AutocastScope() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(before_.device, before_.enabled);
  at::autocast::set_autocast_dtype(before_.device, before_.dtype);
  at::autocast::set_autocast_cache_enabled(cached_before_);
}

void WithoutAutocast::before_call(std::span<const c10::IValue> /*arguments*/) {
  calls_.push_back(std::make_unique<AutocastScope>(
      AutocastState{device_, /*enabled=*/false, at::autocast::get_autocast_dtype(device_)}));
}

void WithoutAutocast::after_call(std::span<const c10::IValue> /*arguments*/, const c10::IValue& /*result*/) {
  calls_.pop_back();
}

c10::IValue with_float32(const c10::IValue& value) {
  return map_tensors(value, [](const at::Tensor& tensor) {
    const bool is_half = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
    return is_half ? tensor.to(at::kFloat) : tensor;
  });
}

}  // namespace accel::train
