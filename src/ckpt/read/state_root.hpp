#pragma once

#include <optional>

#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/state_path.hpp"

namespace accel::ckpt {

/// The key of the nested state dict under which its tensors are: the first key of all paths if all entries
/// agree in it and go on behind it, as Accelerate's `model` and `optimizer`; else `model`, if that key is
/// there among others, such as `epoch`; else none.
[[nodiscard]] std::optional<PathKey> state_root(const Checkpoint& checkpoint);

/// `path` without `root`; nothing if it does not begin with it.
[[nodiscard]] std::optional<StatePath> below_root(const StatePath& path, const std::optional<PathKey>& root);

/// Whether the checkpoint is an optimizer's: its root key says so, or it has `state` and `param_groups`.
[[nodiscard]] bool is_optimizer(const Checkpoint& checkpoint);

}  // namespace accel::ckpt
