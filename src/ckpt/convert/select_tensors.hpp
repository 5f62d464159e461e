#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/name_rules.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// Which tensors of a checkpoint are taken, and as what.
struct Selection {
  /// The key of the nested state dict that has the wanted tensors; empty: what state_root says.
  std::string root;
  std::vector<std::string> include;  ///< Globs (`*`, `?`, `[...]`) on the names; none: all.
  std::vector<std::string> exclude;
  /// Applied in this order: `_orig_mod.=`, `module.=`, `model.=transformer.`.
  std::vector<Rename> rename;
  std::optional<DType> dtype;  ///< What floating-point tensors become.
};

/// What select_tensors chose.
struct SelectedTensors {
  OutputState state;                 ///< Tensors only.
  std::vector<std::string> outside;  ///< Names of tensors that are not under the root key.
};

/// The chosen tensors of `checkpoint`, in its order, without the root key. include and exclude see the names
/// without the root key, before renaming. A path is kept as it is unless renaming touched its name; then it
/// is one key. Throws Error: kUsage if the root is not there, a glob matches nothing or two tensors get one
/// name; kFailure for a dtype that cannot be converted.
[[nodiscard]] SelectedTensors select_tensors(const Checkpoint& checkpoint, const Selection& selection);

}  // namespace accel::ckpt
