#pragma once

#include <torch/csrc/jit/api/module.h>

#include <memory>

#include "plan/linears/tensor_plan.hpp"
#include "train/c10d/group.hpp"
#include "train/fsdp/linears/tensor_linear.hpp"
#include "train/graph/run/fused_head.hpp"
#include "train/graph/run/module_attention.hpp"
#include "train/graph/run/module_embedding.hpp"
#include "train/graph/run/module_linear.hpp"
#include "train/graph/run/part_view.hpp"

namespace accel::train {

/// Throws Error (kUsage), which names the module, if code outside a module reads a parameter of it that
/// `plan` cuts: it would get a part. Call before methods are changed.
void require_own_reads(const torch::jit::Module& root, const TensorPlan& plan);

/// Makes linears and embeddings of a model compute with their parts of the weights, as a plan of tensor
/// parallelism says, for as long as this lives. Forward and backward are collective among the ranks of `tp`.
class TensorLinears {
 public:
  /// Changes the code of the modules of `root` that have a style, and of those with attention. Construct it
  /// before the first run, and before methods are rewritten. `tp` must outlive this. Throws Error (kUsage),
  /// which names the module, if its code has no product of its weight, or no lookup in it, or if it does
  /// something else with it.
  TensorLinears(const torch::jit::Module& root, const TensorPlan& plan, Group& tp);

  /// Returns `head` for a last linear with style kColwiseGather, whose logits it gathers where `head` returns
  /// nothing. Both must outlive the result.
  [[nodiscard]] HeadFunction with_logits(const HeadFunction& head) const;

 private:
  std::unique_ptr<TensorProducts> products_;
  LinearRegistration linears_;
  EmbeddingRegistration embeddings_;
  AttentionRegistration attention_;
  ViewCheckRegistration views_;
};

}  // namespace accel::train
