#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

namespace accel::train {

class UnitActivations;
class ModuleState;

/// What happens around each call of a wrapped unit's method. Both run on the thread that runs the graph.
class UnitHooks {
 public:
  UnitHooks() = default;
  UnitHooks(const UnitHooks&) = delete;
  UnitHooks& operator=(const UnitHooks&) = delete;
  virtual ~UnitHooks() = default;

  /// What a call gets in place of an argument, and gives back in place of its result.
  [[nodiscard]] virtual c10::IValue cast_argument(const c10::IValue& value) const { return value; }
  [[nodiscard]] virtual c10::IValue cast_result(const c10::IValue& value) const { return value; }
  virtual void before_call(std::span<const c10::IValue> arguments) = 0;
  virtual void after_call(std::span<const c10::IValue> arguments, const c10::IValue& result) = 0;

  /// Whether calls keep only their arguments, and run once more in backward (graph/recompute.hpp).
  [[nodiscard]] virtual bool recomputes() const { return false; }
  /// Where such a call keeps them in between; null: where they are.
  [[nodiscard]] virtual UnitActivations* kept() { return nullptr; }
  /// On which the module computes: whose random numbers and autocast the second run sets.
  [[nodiscard]] virtual c10::Device device() const { return c10::kCPU; }
  /// What its methods may change of the module; null: not known.
  [[nodiscard]] virtual std::shared_ptr<const ModuleState> state() const { return nullptr; }
  /// Whether the memory of `tensor` is that of the unit's parameters, which is freed after the call.
  [[nodiscard]] virtual bool owns(const at::Tensor& /*tensor*/) const { return false; }
  /// Around that second run and the backward through it.
  virtual void before_recompute() {}
  virtual void after_recompute() {}
  /// A call that began has thrown an Error of ours, which the TorchScript interpreter is about to turn into a
  /// text of its own.
  virtual void failed(const std::exception_ptr& /*error*/) {}
  /// For messages and profiles: the module's path, "(root)" for the model itself.
  [[nodiscard]] virtual std::string name() const = 0;
};

/// Which module object calls which hooks, for as long as this lives.
///
/// A TorchScript operator is a plain function and finds its unit by the module object's address alone, so the
/// table behind this is the one global of the engine. An object without hooks runs its method as it was.
class UnitRegistration {
 public:
  explicit UnitRegistration(std::unordered_map<const c10::ivalue::Object*, UnitHooks*> hooks);
  UnitRegistration(const UnitRegistration&) = delete;
  UnitRegistration& operator=(const UnitRegistration&) = delete;
  ~UnitRegistration();
};

/// The qualified name of the operator that a rewritten method consists of:
/// `accel::run_unit(self, arguments..., method) -> result`, where `method` names the copy of the original
/// body.
inline constexpr const char* kRunUnit = "accel::run_unit";

}  // namespace accel::train
