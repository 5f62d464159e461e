#pragma once

#include <memory>

#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// A checkpoint with the tensors of `first` and, behind them, those of `second`, so that one plan can take
/// from both. It has the kind, path and metadata of `first`, and no objects. Its directory is the one that
/// the directories of both lie in. All tensors are located. Throws Error: kFailure if both have a tensor of
/// the same name, and what Checkpoint::locate() throws.
[[nodiscard]] std::unique_ptr<Checkpoint> join(Checkpoint& first, Checkpoint& second);

}  // namespace accel::ckpt
