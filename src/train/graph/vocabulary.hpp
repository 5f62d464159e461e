#pragma once

#include <torch/csrc/jit/api/module.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace accel::train {

/// How many tokens the model knows: the rows of the table in which its forward looks up `input`, the number
/// of an input without self. The least, if there are several such tables. Nothing if the graph does not show
/// it: the input, or a copy of it, is changed, or it is looked up in part or under a condition. Call before
/// methods are rewritten.
std::optional<std::int64_t> vocabulary_of(const torch::jit::Module& root, std::size_t input);

}  // namespace accel::train
