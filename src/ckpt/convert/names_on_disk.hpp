#pragma once

#include <memory>

#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// The model of a training's checkpoint with its tensors under the names, and in the shapes, of the directory
/// of weights that the model comes from. The file kWeightConversionsName beside the model says what they are.
/// Without such a file, and for an adapter, which has names of PEFT, `source` itself. Throws Error (kUsage)
/// if the file is malformed, and what applicable() and convert_tensors() throw.
[[nodiscard]] std::unique_ptr<Checkpoint> with_names_on_disk(std::unique_ptr<Checkpoint> source);

}  // namespace accel::ckpt
