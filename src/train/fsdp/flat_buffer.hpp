#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "train/dist/group.hpp"
#include "train/fsdp/buffer_pool.hpp"
#include "train/fsdp/flat_layout.hpp"

namespace accel::train {

/// The parameters of one unit that share a dtype and requires_grad, as one flat buffer.
///
/// This rank keeps its shard. Unsharded, the parameters are views of the flat buffer's storage: the
/// all-gather writes straight into them. Resharding frees the storage's memory and keeps the tensors. With
/// one rank the shard is the whole buffer and the parameters are views of it for good.
///
/// unshard and reduce are collective: every rank calls them for the same buffers in the same order.
class FlatBuffer {
 public:
  FlatBuffer(FlatLayout layout, at::ScalarType dtype, bool trainable, std::shared_ptr<BufferPool> pool);
  FlatBuffer(const FlatBuffer&) = delete;
  FlatBuffer& operator=(const FlatBuffer&) = delete;

  [[nodiscard]] const FlatLayout& layout() const { return layout_; }
  [[nodiscard]] bool trainable() const { return trainable_; }
  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  /// This rank's elements: [layout().shard_numel].
  [[nodiscard]] const at::Tensor& shard() const { return shard_; }
  /// The unsharded parameters in layout order, leaves of autograd if trainable. Their data may be touched
  /// only between finish_unshard() and reshard().
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return parameters_; }

  void start_unshard(Group& group);
  void finish_unshard();
  void reshard();
  [[nodiscard]] bool is_unsharded() const { return unsharded_; }

  /// Adds the gradient of parameter `index` to the flat gradient. Gradients add up over calls until reduce.
  void add_gradient(std::size_t index, const at::Tensor& gradient);
  /// Starts the reduce-scatter of the flat gradient to the mean over ranks; parameters without a gradient
  /// count as zero.
  void start_reduce(Group& group);
  void finish_reduce();
  /// The mean gradient of this rank's shard after finish_reduce(), until clear_gradient().
  [[nodiscard]] const at::Tensor& gradient() const { return gradient_; }
  void clear_gradient() { gradient_.reset(); }

 private:
  void require_flat_gradient();
  [[nodiscard]] at::Tensor part_of(const at::Tensor& flat, std::size_t index) const;

  FlatLayout layout_;
  at::ScalarType dtype_;
  bool trainable_;
  std::shared_ptr<BufferPool> pool_;
  at::Tensor shard_;
  at::Tensor full_;  ///< [numel], on the storage that the parameters are views of.
  std::vector<at::Tensor> parameters_;
  bool unsharded_ = false;
  Pending gather_;

  at::Tensor flat_gradient_;  ///< [numel], while gradients are coming in.
  std::vector<bool> has_gradient_;
  at::Tensor gradient_;
  Pending reduce_;
};

}  // namespace accel::train
