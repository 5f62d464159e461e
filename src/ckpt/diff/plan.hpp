#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/name_rules.hpp"

namespace accel::ckpt {

/// Which entries of two checkpoints are compared, and under which names.
struct DiffSelection {
  /// The key of the nested state dict that is compared, in each checkpoint that has it. If it is empty,
  /// plan_diff chooses the keys.
  std::string root;
  std::vector<Rename> rename;        ///< Rules for the names of A, applied in this order.
  std::vector<std::string> include;  ///< Globs on names without the root, after renaming; empty means all.
  std::vector<std::string> exclude;  ///< Globs on names without the root, after renaming, to leave out.
};

/// An entry of one checkpoint.
struct DiffEntry {
  std::string name;       ///< The name under which it is compared.
  std::size_t index = 0;  ///< Its place in tensors() or objects().

  friend bool operator==(const DiffEntry&, const DiffEntry&) = default;
};

/// An entry that both checkpoints have.
struct DiffPair {
  std::string name;
  std::size_t a = 0;  ///< Its index in A.
  std::size_t b = 0;  ///< Its index in B.

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

/// Pairs the entries of two checkpoints of any kinds by their names.
///
/// If only one of them has a root key, such as Accelerate's `model`, that key is left out of the names, and
/// what is not under it is not compared. If both have the same root key, everything is compared. Objects are
/// compared only if both kinds can hold them. If a safetensors file records a name as tied to another tensor,
/// the name counts as present when the other checkpoint has it. Throws Error (kUsage) if neither has the
/// root, if a glob or a renaming rule matches nothing, or if two entries get the same name.
[[nodiscard]] DiffPlan plan_diff(const Checkpoint& a, const Checkpoint& b, const DiffSelection& selection);

}  // namespace accel::ckpt
