#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/jit/api/module.h>

namespace accel::train {

/// Patches what tracing freezes into graphs, so that a traced model trains and evaluates on any device:
/// - A constant argument `train`, `training` or `use_input_stats` (of dropout, batch_norm, lstm and others)
///   becomes the module's flag `training` if it equals the value with which the module was saved. The
///   constant dropout_p of scaled_dot_product_attention applies only while the flag is set. A constant
///   that differs from the flag is intended and stays, and so do all constants in modules that are certainly
///   scripted, in lines that the file says an author wrote, and in modules that were saved in evaluation mode
///   while the model and another part of it that has modes (torch's dropout, batch norm or recurrent network)
///   were in training mode.
/// - A batch norm counts a batch (num_batches_tracked) only while the flag is set.
/// - A constant device of another kind, or another GPU than this rank's, becomes `device`. The CPU stays
///   where the author of a scripted model wrote it, as far as the graph shows that.
/// - A constant tensor moves to `device`, unless it is a number in the arithmetic of sizes.
/// accel-export repeats the first rule where it compares evaluation (tools/export/accel_export/modes.py).
/// Call before the first run of any method of the model: compiled graphs are cached.
void patch_traced(const torch::jit::Module& root, at::Device device);

/// Sets the device in the code that `accel import` wrote of a program of torch.export, which records the
/// device of the export in every operator that makes or moves a tensor. Call before the first run.
void patch_exported(const torch::jit::Module& root, at::Device device);

}  // namespace accel::train
