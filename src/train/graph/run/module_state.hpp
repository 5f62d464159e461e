#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace accel::train {

/// The attributes of a module and of its submodules that methods may change: all attributes but parameters
/// and modules.
class ModuleState {
 public:
  struct Slot {
    c10::intrusive_ptr<c10::ivalue::Object> object;
    std::size_t index = 0;
    std::string name;        ///< The path from the module, such as "router.aux".
    bool is_buffer = false;  ///< The author declared it as state: no gradient goes through it.

    [[nodiscard]] const c10::IValue& value() const { return object->getSlot(index); }
    void set(c10::IValue value) const { object->setSlot(index, std::move(value)); }
  };
  /// Tensors and their versions at one moment. A comparison with a later moment shows replaced tensors and
  /// changes in place, except the changes that batch norms make.
  using TensorVersions = std::vector<std::pair<at::Tensor, std::uint32_t>>;

  explicit ModuleState(const c10::IValue& self);

  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  /// The versions of all tensors in the slots, as they are now.
  [[nodiscard]] TensorVersions tensor_versions() const;
  /// The values of the slots, not copied.
  [[nodiscard]] std::vector<c10::IValue> values() const;
  /// Copies of the values. A tensor in several slots is copied once. Tensors in lists, tuples and dicts,
  /// which may be parameters, are not copied.
  [[nodiscard]] std::vector<c10::IValue> copies() const;

 private:
  std::vector<Slot> slots_;
};

/// Whether `versions` has `tensor` with the version that it has now.
bool contains(const ModuleState::TensorVersions& versions, const at::Tensor& tensor);

/// A snapshot of a module's state before a call, for the recomputation of that call.
class StateSnapshot {
 public:
  explicit StateSnapshot(const ModuleState& state);
  /// Call after the call: drops the copies of tensors that the call has not changed in place.
  void finish();

  /// The value of a slot. Throws an Error of kind kUsage that names `unit` if the tensor has been changed in
  /// place since finish(), so that its value before the call is lost.
  [[nodiscard]] c10::IValue value(std::size_t slot, const std::string& unit) const;
  [[nodiscard]] const std::vector<c10::IValue>& values() const { return values_; }
  [[nodiscard]] const ModuleState::TensorVersions& tensor_versions() const { return tensor_versions_; }

 private:
  const ModuleState& state_;
  std::vector<c10::IValue> values_;
  ModuleState::TensorVersions tensor_versions_;
  std::vector<c10::IValue> copies_;
  std::vector<std::optional<std::uint32_t>> versions_;  ///< Versions of uncopied tensors after the call.
};

/// Sets a module's state to a snapshot for as long as this lives, and then back: what a recomputation changes
/// in the state is dropped.
class SnapshotScope {
 public:
  SnapshotScope(const ModuleState& state, const StateSnapshot& snapshot, const std::string& unit);
  ~SnapshotScope();
  SnapshotScope(const SnapshotScope&) = delete;
  SnapshotScope& operator=(const SnapshotScope&) = delete;

 private:
  void restore() noexcept;

  const ModuleState& state_;
  std::vector<c10::IValue> values_;
};

}  // namespace accel::train
