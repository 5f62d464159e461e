#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/jit/api/module.h>

namespace accel::train {

/// Undoes what tracing freezes into graphs, so that a traced model trains and evaluates on any device:
/// - A constant argument `train`, `training` or `use_input_stats` (dropout, batch_norm, lstm, instance_norm
/// ...)
///   that equals the flag `training` that its module was saved with becomes that flag, and the constant
///   dropout_p of scaled_dot_product_attention counts only while it is set. One that differs was meant so and
///   stays; so do all in modules that are surely scripted, whose constants their authors wrote.
/// - A batch norm counts a batch (num_batches_tracked) while the flag is set, and only then.
/// - A constant device other than `device` becomes `device`: another kind, or another GPU than this rank's.
///   The CPU stays where the author of a scripted model wrote it, as far as one can tell.
/// - A constant that is a tensor moves to `device`, but for numbers in the arithmetic of sizes.
/// Call before the first run of any method of the model: compiled graphs are cached.
void patch_traced(const torch::jit::Module& root, at::Device device);

}  // namespace accel::train
