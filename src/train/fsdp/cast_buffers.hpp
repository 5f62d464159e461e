#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <unordered_map>

#include "structure/structure.hpp"

namespace accel::train {

/// The dtypes that the cast buffers of a model had, by their names.
using CastBuffers = std::unordered_map<std::string, at::ScalarType>;

/// Casts the floating buffers of the model to `dtype`, as FullyShardedDataParallel does with a
/// `buffer_dtype`. The buffers of ignored modules and of batch norms are not cast: 16 bits are too few for
/// running statistics. A buffer that several modules share stays shared.
CastBuffers cast_buffers(const torch::jit::Module& root, const ModelStructure& structure,
                         at::ScalarType dtype);

}  // namespace accel::train
