#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/large_memory.hpp"
#include "ckpt/pickle/graph.hpp"
#include "ckpt/pickle/stack.hpp"

namespace accel::ckpt::pickle {

/// Opcodes of the second half of a pickle that want values from beneath its stack, which only the first half
/// has: with all that lay on the stack when each was met, they wait for it.
class PutOffOpcodes {
 public:
  struct Opcode {
    std::size_t position = 0;
    std::size_t memoized = 0;  ///< Memo indices that were set before it.
    std::size_t values = 0;    ///< That lay on the stack, and marks.
  };

  /// Leaves nothing on the stack.
  void add(std::size_t position, std::size_t memoized, Stack& stack) {
    const std::size_t before = values_.size();
    stack.empty([&](Ref value) { values_.push_back(value); }, [&] { values_.push_back(Ref::mark()); });
    opcodes_.push_back({position, memoized, values_.size() - before});
  }

  [[nodiscard]] std::size_t count() const { return opcodes_.size(); }

  /// Calls `push` for each value, Ref::mark() for a mark, and then `run` for the opcode, one after another.
  template <class Push, class Run>
  void run_all(Push push, Run run) const {
    std::span<const Ref> values = values_;
    for (const Opcode& opcode : opcodes_) {
      for (const Ref value : values.first(opcode.values)) push(value);
      values = values.subspan(opcode.values);
      run(opcode);
    }
  }

 private:
  std::vector<Opcode> opcodes_;
  LargeVector<Ref> values_;  // Of one opcode after another.
};

}  // namespace accel::ckpt::pickle
