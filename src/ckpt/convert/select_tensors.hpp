#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/layouts.hpp"
#include "ckpt/read/name_rules.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// Which tensors of a checkpoint are taken, under which names and in which dtype.
struct Selection {
  /// The keys of the nested state dict above the tensors, as chosen_layout() reads them; if it is empty,
  /// layout_of() finds them.
  std::string root;
  std::vector<std::string> include;  ///< Globs (`*`, `?`, `[...]`) for names to take; empty for all names.
  std::vector<std::string> exclude;  ///< Globs for names to leave out.
  /// Rules such as `_orig_mod.=`, `module.=` or `model.=transformer.`, applied in order.
  std::vector<Rename> rename;
  std::optional<DType> dtype;  ///< The dtype to which floating-point tensors are converted.
};

/// An object under the root key.
struct SelectedObject {
  StatePath path;          ///< The path without the root.
  std::size_t source = 0;  ///< Index into Checkpoint::objects().
};

/// What was selected of a checkpoint.
struct SelectedState {
  Layout layout;
  OutputState state;                         ///< The selected tensors, and no objects.
  std::vector<SelectedObject> objects;       ///< All objects that the layout takes.
  std::vector<std::string> outside;          ///< Names of tensors that the layout does not take.
  std::vector<std::string> outside_objects;  ///< Names of objects that the layout does not take.
};

/// Everything that `layout` takes, in the order of `checkpoint`: tensors as they are stored, and objects.
[[nodiscard]] SelectedState select_below(const Checkpoint& checkpoint, Layout layout);

/// The dtype in which a tensor is written: `wanted` for floating-point tensors, if it is set, else the
/// entry's. Throws Error (kFailure) for a dtype that cannot be converted.
[[nodiscard]] DType converted_dtype(const TensorEntry& entry, const std::optional<DType>& wanted);

/// The selected tensors of `checkpoint`, in its order, without the root. include and exclude see the names
/// without the root, before renaming. A path is kept as it is unless renaming touched its name;
/// then it is one key. Objects are neither filtered nor renamed. Throws Error: kUsage if
/// chosen_layout() does, a glob matches nothing or two tensors get one name; kFailure for a dtype that cannot
/// be converted.
[[nodiscard]] SelectedState select_tensors(const Checkpoint& checkpoint, const Selection& selection);

}  // namespace accel::ckpt
