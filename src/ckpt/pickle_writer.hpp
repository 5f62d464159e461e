#pragma once

#include <string>

#include "ckpt/pickle_value.hpp"

namespace accel::ckpt::pickle {

/// Writes `value` with protocol 2, in the opcodes that torch.save uses and torch.load(weights_only=True)
/// accepts. The length depends on the tree alone. Strings and names are written once and referred to
/// afterwards. Throws Error (kFailure) if the tree is deeper than a reader would accept.
[[nodiscard]] std::string write(const Value& value);

}  // namespace accel::ckpt::pickle
