#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "plan/linears/tensor_plan.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// The products of tensor parallelism, forward and backward. Each is collective among the ranks of the group,
/// in which they have a part of the weight each.
///
/// Sources: Shoeybi et al., "Megatron-LM", 2019; the styles are those of transformers
/// (integrations/tensor_parallel.py).
class TensorProducts {
 public:
  explicit TensorProducts(Group& ranks) : ranks_(ranks) {}

  /// A linear of `style`: the input [..., in], this rank's part of the weight [out, in], and the bias, which
  /// is undefined if there is none. The output is [..., out], or this rank's part of it with kColwise.
  at::Tensor linear(TensorStyle style, const at::Tensor& input, const at::Tensor& weight,
                    const at::Tensor& bias);
  /// An embedding of `style`: this rank's part of the table [vocabulary, width], and indices of any shape.
  /// `padding_index` is the row without a gradient, or -1. The result is [..., width]. An index outside the
  /// vocabulary fails as with aten::embedding.
  at::Tensor embedding(TensorStyle style, const at::Tensor& table, const at::Tensor& indices,
                       std::int64_t padding_index);
  /// Throws Error (kUsage) if `tensor` is this rank's part of the output of a kColwise linear, and a view
  /// with `sizes` has -1 in another place than the heads: it would have a part of the tokens and all heads.
  void require_heads(const at::Tensor& tensor, at::IntArrayRef sizes) const;
  /// Throws Error (kUsage) if `tensor` is such a part, and `dim` is its last dimension: a linear that packs
  /// several has rows of each on each rank only if its weight is cut piece by piece, which no style does.
  void require_uncut(const at::Tensor& tensor, std::int64_t dim) const;

 private:
  /// Whether `tensor` is one of `parts_`.
  [[nodiscard]] bool is_part(const at::Tensor& tensor) const;
  /// `input` for a product with a part of the weight. Its gradient is the sum over the ranks.
  at::Tensor shared(const at::Tensor& input);

  using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>;
  /// An input and the result of shared() for it.
  struct Shared {
    WeakTensor input;
    WeakTensor result;
  };

  Group& ranks_;
  /// The last input. The projections of attention have one input, whose gradients are added up before one
  /// all-reduce. Neither tensor is kept alive.
  std::optional<Shared> last_;
  /// The last outputs of kColwise linears.
  std::deque<WeakTensor> parts_;
};

}  // namespace accel::train
