#pragma once

#include <torch/csrc/jit/api/module.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace accel::train {

/// The number of tokens that the model knows: the rows of the table in which its forward looks up input
/// number `input`, not counting self; of several such tables, the smallest. Nothing if the graph does not
/// show it, because the input or a copy of it is changed, or looked up in part or under a condition. Call
/// before methods are rewritten.
std::optional<std::int64_t> vocabulary_of(const torch::jit::Module& root, std::size_t input);

}  // namespace accel::train
