#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/name_rules.hpp"

namespace accel::ckpt {

/// What of two checkpoints is compared, and under which names.
struct DiffSelection {
  /// The key of the nested state dict that is compared, on each side that has it; empty: as plan_diff says.
  std::string root;
  std::vector<Rename> rename;        ///< Of A's names, in this order.
  std::vector<std::string> include;  ///< Globs on the names without the root, renamed; none: all.
  std::vector<std::string> exclude;
};

/// An entry of one checkpoint: index into its tensors() or objects().
struct DiffEntry {
  std::string name;
  std::size_t index = 0;

  friend bool operator==(const DiffEntry&, const DiffEntry&) = default;
};

/// The same entry in both.
struct DiffPair {
  std::string name;
  std::size_t a = 0;
  std::size_t b = 0;

  friend bool operator==(const DiffPair&, const DiffPair&) = default;
};

/// Which entries of two checkpoints belong together. Each list is in the order of A, then of B.
struct DiffPlan {
  std::vector<DiffPair> tensors;
  std::vector<DiffEntry> tensors_only_a;
  std::vector<DiffEntry> tensors_only_b;
  std::vector<DiffPair> objects;
  std::vector<DiffEntry> objects_only_a;
  std::vector<DiffEntry> objects_only_b;
  std::vector<std::string> left_out_a;  ///< Tensors and objects that are not under the root, by full name.
  std::vector<std::string> left_out_b;
};

/// Pairs the entries of two checkpoints of any kinds by their names. A root key that one of them has and the
/// other has not, as Accelerate's `model`, is left out of the names, and what is not under it is not
/// compared; of two checkpoints with the same root key everything is. Objects are compared only if both kinds
/// can hold them. A name that a safetensors file records as tied to another one counts as there, if the other
/// side asks for it. Throws Error (kUsage) if neither has the root, a glob or a rule of renaming changes
/// nothing, or two entries get one name.
[[nodiscard]] DiffPlan plan_diff(const Checkpoint& a, const Checkpoint& b, const DiffSelection& selection);

}  // namespace accel::ckpt
