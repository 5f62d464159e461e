#pragma once

#include <string>

#include "ckpt/pickle/value.hpp"

namespace accel::ckpt {

/// What of an object torch.load(weights_only=True), of torch 2.11 to 2.15, does not take: the name of a class
/// or function, or a tensor, whose storage would be missing. Empty if nothing.
[[nodiscard]] std::string unsafe_part(const pickle::Value& value);

}  // namespace accel::ckpt
