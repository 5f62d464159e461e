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

/// The attributes of a module, and of those below it, that its methods may change: all but parameters and
/// modules.
class ModuleState {
 public:
  struct Slot {
    c10::intrusive_ptr<c10::ivalue::Object> object;
    std::size_t index = 0;
    std::string name;        ///< From the module: "router.aux".
    bool is_buffer = false;  ///< State by its author's word, which no gradient goes through.

    [[nodiscard]] const c10::IValue& value() const { return object->getSlot(index); }
    void set(c10::IValue value) const { object->setSlot(index, std::move(value)); }
  };
  /// Tensors and the versions that they had: neither another tensor nor a change in place goes unnoticed,
  /// but for what batch norms do.
  using TensorVersions = std::vector<std::pair<at::Tensor, std::uint32_t>>;

  explicit ModuleState(const c10::IValue& self);

  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  /// Of all tensors in the slots.
  [[nodiscard]] TensorVersions tensor_versions() const;
  /// The values as they are.
  [[nodiscard]] std::vector<c10::IValue> values() const;
  /// Copies of them. Tensors that are one stay one; those in lists, tuples and dicts are not copied, and may
  /// be parameters.
  [[nodiscard]] std::vector<c10::IValue> copies() const;

 private:
  std::vector<Slot> slots_;
};

/// Whether `tensor`, as it is now, is among `versions`.
bool contains(const ModuleState::TensorVersions& versions, const at::Tensor& tensor);

/// What a module's state was before a run of it, to be put there for a second run.
class StateSnapshot {
 public:
  explicit StateSnapshot(const ModuleState& state);
  /// After the run: of tensors that it has not changed in place the copies are dropped.
  void finish();

  /// Of a slot. Throws an Error of kind kUsage, naming `unit`, if the tensor that was there has been changed
  /// in place since finish(), by others: then nobody knows what it was.
  [[nodiscard]] c10::IValue value(std::size_t slot, const std::string& unit) const;
  [[nodiscard]] const std::vector<c10::IValue>& values() const { return values_; }
  [[nodiscard]] const ModuleState::TensorVersions& tensor_versions() const { return tensor_versions_; }

 private:
  const ModuleState& state_;
  std::vector<c10::IValue> values_;
  ModuleState::TensorVersions tensor_versions_;
  std::vector<c10::IValue> copies_;
  std::vector<std::optional<std::uint32_t>> versions_;  ///< Of tensors that are not copied, after the run.
};

/// Puts what was there before a run in the place of all values as long as it lives: what a run changes is
/// forgotten at the end.
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
