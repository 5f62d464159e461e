#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <unordered_map>

#include "structure/structure.hpp"

namespace accel::train {

/// The dtypes that the cast buffers of a model had, by their names.
using CastBuffers = std::unordered_map<std::string, at::ScalarType>;

/// Casts the floating buffers of the model: what FullyShardedDataParallel does with a `buffer_dtype`. Those
/// of ignored modules, and of batch norms, whose running statistics 16 bits would spoil, stay as they are. A
/// buffer that several modules share stays one.
CastBuffers cast_buffers(const torch::jit::Module& root, const ModelStructure& structure,
                         at::ScalarType dtype);

}  // namespace accel::train
