#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>

namespace accel::train {

/// The linear with which a model ends.
struct FoundHead {
  std::string module;           ///< The path of the module that computes it; empty for the root.
  std::string missing;          ///< Why there is none; empty if there is one.
  bool has_own_weight = false;  ///< Its weight is the module's `weight`.

  [[nodiscard]] bool is_found() const { return missing.empty(); }
};

/// The method that add_fused_forward() gives to the model.
inline constexpr const char* kFusedForward = "_accel_fused_head_forward";

/// Looks for the linear that computes the output `output` of forward, which is its index or its name in a
/// dict. If there is one, the model gets the method kFusedForward, a copy of forward in which kFusedHead
/// stands for this linear. Methods between the two are copied as well, and existing ones stay as they are.
///
/// The linear is followed through calls of submodules, tuples, a dict, and conversions to float32. Nothing
/// else may use the logits, because the model computes none if the operator returns a loss. Call before
/// methods are rewritten (rewrite.hpp).
FoundHead add_fused_forward(const torch::jit::Module& root, const std::string& output);

}  // namespace accel::train
