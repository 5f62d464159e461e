#pragma once

#include <torch/csrc/jit/api/module.h>

namespace accel::train {

/// Makes every `tensor.data` of the model a `tensor.detach()`: the same values, but what is changed in place
/// through it counts as a change of the tensor. So a parameter that is changed while it is sharded is noticed
/// whatever way it took; the change would be lost. Call before the first run of any method of the model.
void make_data_visible(const torch::jit::Module& root);

}  // namespace accel::train
