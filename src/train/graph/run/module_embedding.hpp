#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "train/graph/run/module_functions.hpp"

namespace accel::train {

/// Computes an embedding that is not plain: gets the table [rows, width], indices of any shape, and the row
/// whose gradient is zero, or -1. Returns [..., width].
using EmbeddingFunction =
    std::function<at::Tensor(const at::Tensor& table, const at::Tensor& indices, std::int64_t padding_index)>;

/// The operator `accel::embedding(Any self, Tensor weight, Tensor indices, int? padding_idx, bool
/// scale_grad_by_freq, bool sparse) -> Tensor`, which stands for the lookup in the weight of the module
/// `self` (passes/replace_embeddings.hpp). As kModuleLinear (module_linear.hpp), it calls the module's
/// EmbeddingFunction, and is aten::embedding for a module without one.
inline constexpr const char* kModuleEmbedding = "accel::embedding";

using EmbeddingRegistration = ModuleFunctions<EmbeddingFunction>;

}  // namespace accel::train
