#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace accel::train {

/// A scaled_dot_product_attention that the model's forward runs.
struct AttentionPlace {
  std::string module;       ///< The path of the module in whose code it is.
  std::int64_t number = 0;  ///< AttentionCall::number
  std::optional<std::size_t>
      mask;  ///< Which of the results of AttentionCode::masks is its mask, if it has one.
};

/// What replace_attention() finds.
struct AttentionCode {
  std::vector<AttentionPlace> places;
  /// The part of forward that computes masks: it takes the arguments of forward, from the model's own object
  /// on, and returns a tuple of tensors. Null if no attention has a mask.
  std::shared_ptr<torch::jit::Graph> masks;
  /// forward without that part, with all calls inlined. An attention in it has no mask.
  std::shared_ptr<torch::jit::Graph> rest;
};

/// Makes each `aten::scaled_dot_product_attention` in the methods of the model's modules a call of
/// kModuleAttention (run/module_attention.hpp), which changes no result by itself. Call before the first run,
/// and before methods are rewritten (rewrite.hpp).
void call_module_attention(const torch::jit::Module& root);

/// Does that, and returns what the attentions of forward and their masks are.
///
/// A mask that depends on a parameter, or on what another part of the model computes, is an Error of kind
/// kUsage, and so is code in which an attention cannot be found by its module. Call before methods are copied
/// (fuse_head.hpp).
[[nodiscard]] AttentionCode replace_attention(const torch::jit::Module& root);

}  // namespace accel::train
