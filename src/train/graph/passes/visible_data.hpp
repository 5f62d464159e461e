#pragma once

#include <torch/csrc/jit/api/module.h>

namespace accel::train {

/// Replaces every `tensor.data` in the model by `tensor.detach()`: the same values, but a change in place
/// through it raises the version of the tensor. The engine thereby detects every change of a
/// parameter that is a copy of its shard, which would be lost. Call before the first run of any method of the
/// model.
void make_data_visible(const torch::jit::Module& root);

}  // namespace accel::train
