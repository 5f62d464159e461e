#pragma once

#include <string>

#include "ckpt/pickle/value.hpp"

namespace accel::ckpt {

/// The part of an object that torch.load(weights_only=True) of torch 2.11 to 2.15 refuses: the name of a
/// class or a function, or a tensor, as its storage would be missing. Empty if torch accepts the object.
[[nodiscard]] std::string unsafe_part(const pickle::Value& value);

}  // namespace accel::ckpt
