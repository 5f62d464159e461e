#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "train/graph/run/unit_body.hpp"

namespace accel::train {

class UnitActivations;
class ModuleState;

/// Hooks around each call of a wrapped unit's method. They run on the thread that runs the graph.
class UnitHooks {
 public:
  UnitHooks() = default;
  UnitHooks(const UnitHooks&) = delete;
  UnitHooks& operator=(const UnitHooks&) = delete;
  virtual ~UnitHooks() = default;

  /// The value that a call gets instead of an argument, and the value that it returns instead of its result.
  [[nodiscard]] virtual c10::IValue cast_argument(const c10::IValue& value) const { return value; }
  [[nodiscard]] virtual c10::IValue cast_result(const c10::IValue& value) const { return value; }
  virtual void before_call(std::span<const c10::IValue> arguments) = 0;
  virtual void after_call(std::span<const c10::IValue> arguments, const c10::IValue& result) = 0;

  /// What runs in training instead of the module's method forward; null for the method itself.
  [[nodiscard]] virtual const UnitBody* compiled_body() const { return nullptr; }
  /// Whether calls save only their arguments and are recomputed in backward (graph/run/recompute.hpp).
  [[nodiscard]] virtual bool recomputes() const { return false; }
  /// Where such a call saves them in between. Null leaves them in place.
  [[nodiscard]] virtual UnitActivations* saved_activations() { return nullptr; }
  /// The device on which the module computes. Recomputation sets the random numbers and the autocast of it.
  [[nodiscard]] virtual c10::Device device() const { return c10::kCPU; }
  /// The state that the module's methods may change; null if it is not known.
  [[nodiscard]] virtual std::shared_ptr<const ModuleState> state() const { return nullptr; }
  /// Whether the memory of `tensor` is that of the unit's parameters, which is freed after the call.
  [[nodiscard]] virtual bool owns(const at::Tensor& /*tensor*/) const { return false; }
  /// Around a recomputation and the backward through it.
  virtual void before_recompute() {}
  virtual void after_recompute() {}
  /// A call has thrown an Error of ours, which the TorchScript interpreter is about to replace by an
  /// exception of its own.
  virtual void failed(const std::exception_ptr& /*error*/) {}
  /// The module's path, for messages and profiles; "(root)" for the model itself.
  [[nodiscard]] virtual std::string name() const = 0;
};

/// Connects module objects with their hooks for as long as this lives.
///
/// A TorchScript operator is a plain function and can find its unit only by the address of the module object,
/// so that the table behind this class is global, the only global of the engine. An object without hooks runs
/// its method unchanged.
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
