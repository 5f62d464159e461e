#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/jit/api/module.h>

namespace accel::train {

/// Undoes what tracing freezes into graphs, so that a traced model trains and evaluates on any device:
/// - A constant argument `train` or `training` (dropout, batch_norm, lstm ...) that equals the flag
/// `training`
///   that its module was saved with becomes that flag, and the constant dropout_p of
///   scaled_dot_product_attention counts only while it is set. One that differs was meant so and stays.
/// - A constant device other than `device` becomes `device`: another kind, or another GPU than this rank's.
/// - A constant that is a tensor moves to `device`, but for numbers in the arithmetic of sizes.
/// Call before the first run of any method of the model: compiled graphs are cached.
void mend_traced(const torch::jit::Module& root, at::Device device);

}  // namespace accel::train
