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
  using Marks = std::vector<std::pair<at::Tensor, std::uint32_t>>;

  explicit ModuleState(const c10::IValue& self);

  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  /// Of all tensors in the slots.
  [[nodiscard]] Marks marks() const;
  /// The values as they are.
  [[nodiscard]] std::vector<c10::IValue> values() const;
  /// Copies of them. Tensors that are one stay one; those in lists, tuples and dicts are not copied, and may
  /// be parameters.
  [[nodiscard]] std::vector<c10::IValue> copies() const;

 private:
  std::vector<Slot> slots_;
};

/// Whether `tensor`, as it is now, is among `marks`.
bool is_marked(const at::Tensor& tensor, const ModuleState::Marks& marks);

/// Those of `copies` whose slots have other values now than `values`, which were there when they were made;
/// of those the tensors are as `marks` says.
std::vector<std::optional<c10::IValue>> only_changed(const ModuleState& state,
                                                     const std::vector<c10::IValue>& values,
                                                     const ModuleState::Marks& marks,
                                                     std::vector<c10::IValue> copies);

/// Puts copies in the place of all values as long as it lives: what a run changes is forgotten at the end.
class StateAside {
 public:
  /// Where `before` has a value, that is taken instead of a copy.
  StateAside(const ModuleState& state, const std::vector<std::optional<c10::IValue>>& before);
  ~StateAside();
  StateAside(const StateAside&) = delete;
  StateAside& operator=(const StateAside&) = delete;

 private:
  const ModuleState& state_;
  std::vector<c10::IValue> values_;
};

}  // namespace accel::train
