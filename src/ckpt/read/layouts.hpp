#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/state_path.hpp"

namespace accel::ckpt {

/// A layout tells the entries of a checkpoint apart: a model's weights, the state of an optimizer, and other
/// state of a run. A table in layouts.cpp lists the layouts that are known; docs/formats.md ("Layouts")
/// describes them.
struct Layout {
  /// The keys above the weights, or above the state of the optimizer if there are no weights.
  StatePath root;
  bool is_optimizer = false;          ///< Whether there are no weights, but the state of an optimizer.
  std::vector<StatePath> optimizers;  ///< The keys above each optimizer's state.
  /// What is below `root` but does not belong to the weights: entries, or the keys above them. It is only set
  /// if weights and other state stand side by side.
  std::set<StatePath> beside;
  /// Entries below `root` that are an optimizer's as their flat names show, with the start of the name up to
  /// the key of the optimizer or `state`.
  std::map<std::string, std::string> by_name;
  /// If the layout is that of one of the parts of `by_name`, the start of its names; else empty.
  std::string part;
  /// If it is not clear which tensors are meant, the keys above each set of weights; else empty.
  std::vector<StatePath> candidates;

  /// `path` without `root` in front; nothing if the entry does not belong to the weights, or to the optimizer
  /// if that is all there is.
  [[nodiscard]] std::optional<StatePath> below(const StatePath& path) const;
  /// The keys that name the part of the checkpoint to which an entry belongs that below() leaves out, such as
  /// `app.optim`.
  [[nodiscard]] std::string part_of(const StatePath& path) const;
};

/// The layout of a checkpoint. It follows from the structure alone; no data is read.
[[nodiscard]] Layout layout_of(const Checkpoint& checkpoint);

/// The layout of a checkpoint of which a caller takes the weights, or the part below `root`. Throws Error
/// (kUsage) if the checkpoint has several candidates. If `root` is not empty, it gives the
/// keys above the tensors, joined with dots, and what is below them is taken as it is, except that an
/// optimizer below them is told from the weights. A dot in `root` stands for a dot in a key, too, and `\.`
/// for that alone. Where nothing has such keys, `root` may be what left_out_parts() calls an optimizer of
/// flat names. Throws Error (kUsage) if no tensor is below `root`.
[[nodiscard]] Layout chosen_layout(const Checkpoint& checkpoint, std::string_view root = {});

/// Whether a tensor of the checkpoint is below the keys `root`, as chosen_layout() reads them.
[[nodiscard]] bool has_root(const Checkpoint& checkpoint, std::string_view root);

/// The layout that selects an optimizer's state in a checkpoint that may hold weights, too. Nothing if there
/// is no optimizer, or several that have no key in common.
[[nodiscard]] std::optional<Layout> optimizer_layout(const Checkpoint& checkpoint);

}  // namespace accel::ckpt
