#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/graph/run/run_unit.hpp"

namespace accel::train {

/// Whether operators of this thread on one type of device cast their inputs, and to which dtype.
struct AutocastState {
  at::DeviceType device = at::kCPU;
  bool enabled = false;
  at::ScalarType dtype = at::kBFloat16;

  static AutocastState now(at::DeviceType device);
};

/// Sets the autocast state of this thread for as long as this lives, as `with torch.autocast(...)` does in
/// Python, bit for bit: with use_simple_executor() TorchScript leaves autocast to the operators. The end of
/// the outermost scope clears the cache of cast parameters.
///
/// The autocast state belongs to the thread: a part of forward that runs on another thread needs a scope
/// there. Backward runs without autocast.
class AutocastScope {
 public:
  /// With `caches` false no cast is cached. Required without grad: a cast that is made without grad and used
  /// again with grad would have no gradient.
  explicit AutocastScope(const AutocastState& state, bool caches = true);
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
  ~AutocastScope();

 private:
  AutocastState before_;
  bool cached_before_;
};

/// Hooks of a module that computes as if autocast were off.
///
/// Rotary embeddings multiply positions by frequencies in a matmul, and the 8 bits of a bfloat16 do not hold
/// a position of 300. Python's modules switch autocast off for themselves, which neither tracing nor our
/// executor preserves.
class WithoutAutocast final : public UnitHooks {
 public:
  WithoutAutocast(std::string module, at::DeviceType device) : module_(std::move(module)), device_(device) {}

  /// Whether a module of that TorchScript class must run without autocast.
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
