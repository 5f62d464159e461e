#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/graph/run_unit.hpp"

namespace accel::train {

/// Whether, and in what, this thread's operators on one type of device cast their inputs.
struct AutocastState {
  at::DeviceType device = at::kCPU;
  bool enabled = false;
  at::ScalarType dtype = at::kBFloat16;

  static AutocastState now(at::DeviceType device);
};

/// Sets it on this thread for as long as this lives: what `with torch.autocast(...)` does in Python, bit for
/// bit, for TorchScript runs with use_simple_executor() and leaves autocast to the operators. The outermost
/// one forgets the casts of parameters that are kept for a second use.
///
/// Autocast belongs to the thread: whoever runs a part of forward on another one sets it there. Backward runs
/// without.
class AutocastScope {
 public:
  /// `caches` false: no cast is kept. So it must be without grad, since a cast that is used again with grad
  /// would have none.
  explicit AutocastScope(const AutocastState& state, bool caches = true);
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
  ~AutocastScope();

 private:
  AutocastState before_;
  bool cached_before_;
};

/// Of a module that computes as if there were no autocast.
///
/// Rotary embeddings multiply positions by frequencies in a matmul, and 8 bits do not hold a position of 300.
/// Python's modules switch autocast off for themselves, which neither tracing nor our executor keeps.
class WithoutAutocast final : public UnitHooks {
 public:
  WithoutAutocast(std::string module, at::DeviceType device) : module_(std::move(module)), device_(device) {}

  /// By the name of its class, as TorchScript has it.
  static bool wants(std::string_view class_name) { return class_name.ends_with("RotaryEmbedding"); }

  void before_call(std::span<const c10::IValue> arguments) override;
  void after_call(std::span<const c10::IValue> arguments, const c10::IValue& result) override;
  [[nodiscard]] std::string name() const override { return module_; }

 private:
  std::string module_;
  at::DeviceType device_;
  std::vector<std::unique_ptr<AutocastScope>> calls_;
};

/// A copy of `value` in which 16-bit floating tensors are float32, as Accelerate's convert_outputs_to_fp32.
c10::IValue with_float32(const c10::IValue& value);

}  // namespace accel::train
