#pragma once

#include <optional>

#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/state_path.hpp"

namespace accel::ckpt {

/// The key of the nested state dict under which the tensors are. It is the first key of all paths if all
/// entries have the same one and more keys behind it, like Accelerate's `model` and `optimizer`. Otherwise it
/// is `model` if that key is there beside others, such as `epoch`. Otherwise there is none.
[[nodiscard]] std::optional<PathKey> state_root(const Checkpoint& checkpoint);

/// `path` without `root` in front; nothing if it does not begin with `root`.
[[nodiscard]] std::optional<StatePath> below_root(const StatePath& path, const std::optional<PathKey>& root);

/// Whether the checkpoint is an optimizer's: its root key is `optimizer`, or it has `state` and
/// `param_groups`.
[[nodiscard]] bool is_optimizer(const Checkpoint& checkpoint);

}  // namespace accel::ckpt
