#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "train/graph/run/module_functions.hpp"

namespace accel::train {

/// The arguments of a scaled_dot_product_attention in a module's code.
struct AttentionCall {
  std::int64_t number = 0;  ///< Its place among those of the module's class.
  at::Tensor query;         ///< [batch, heads, length, width]
  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask;
  double dropout = 0;
  bool is_causal = false;
  std::optional<double> scale;
  bool enable_gqa = false;
};

/// Computes the attention, [batch, heads, length, width].
using AttentionFunction = std::function<at::Tensor(const AttentionCall& call)>;

/// The operator `accel::attention(Any self, int number, ...)`, whose other arguments are those of
/// aten::scaled_dot_product_attention. It stands for an attention in the code of the module `self`
/// (passes/replace_attention.hpp), calls the module's AttentionFunction, and is the aten operator for a
/// module without one.
inline constexpr const char* kModuleAttention = "accel::attention";

/// Some inputs of its node in a graph.
enum AttentionInput : std::size_t {
  kAttentionSelf = 0,
  kAttentionNumber = 1,
  kAttentionQuery = 2,
  kAttentionMask = 5,
  kAttentionDropout = 6,
};

/// The aten operator with these arguments.
at::Tensor plain_attention(const AttentionCall& call);

using AttentionRegistration = ModuleFunctions<AttentionFunction>;

}  // namespace accel::train
