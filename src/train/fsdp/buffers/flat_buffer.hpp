#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plan/layout/flat_layout.hpp"
#include "train/c10d/mesh_groups.hpp"
#include "train/device/storage_device.hpp"
#include "train/fsdp/buffers/buffer_pool.hpp"
#include "train/fsdp/buffers/comm_hook.hpp"
#include "train/fsdp/buffers/float8_weights.hpp"
#include "train/fsdp/buffers/gradient_mean.hpp"

namespace accel::train {

/// The dtypes of a flat buffer. They differ in mixed precision only.
struct BufferDtypes {
  at::ScalarType shard = at::kFloat;    ///< Dtype of the shard and its gradient, which the optimizer reads.
  at::ScalarType compute = at::kFloat;  ///< Dtype of the parameters.
  at::ScalarType reduce = at::kFloat;   ///< Dtype of the unsharded gradient.
  bool gathers_float8 = false;          ///< float8_e4m3fn is gathered instead of parameters in `compute`.

  static BufferDtypes all(at::ScalarType dtype) { return {dtype, dtype, dtype}; }
  /// Dtype of what is gathered.
  [[nodiscard]] at::ScalarType gathered() const { return gathers_float8 ? at::kFloat8_e4m3fn : compute; }
};

/// The parameters of one unit that share a dtype and requires_grad, as one flat buffer.
///
/// Each rank keeps its shard, and the gradient of its shard for the optimizer, in a storage that may be
/// offloaded. All other tensors are on the device that computes. The unsharded parameters are views of the
/// flat buffer's storage, so that the all-gather writes straight into them. Resharding frees the memory of
/// that storage and keeps the tensors. With one shard the shard is the whole buffer, and the parameters are
/// permanent views of it. If they compute in another dtype, or the shard is offloaded, they are a copy.
///
/// A buffer that is gathered in float8 has parameters without memory: autograd gives them their gradients in
/// the dtype in which the model computes, and what computes with them reads the bytes of float8_weights().
///
/// The functions that unshard, reduce and average are collective: every rank calls them for the same buffers
/// in the same order.
class FlatBuffer {
 public:
  FlatBuffer(FlatLayout layout, BufferDtypes dtypes, bool trainable, std::shared_ptr<BufferPool> pool,
             std::shared_ptr<StorageDevice> storage);
  FlatBuffer(const FlatBuffer&) = delete;
  FlatBuffer& operator=(const FlatBuffer&) = delete;

  [[nodiscard]] const FlatLayout& layout() const { return layout_; }
  [[nodiscard]] bool trainable() const { return trainable_; }
  /// The dtype of the shard.
  [[nodiscard]] at::ScalarType dtype() const { return dtypes_.shard; }
  /// This rank's elements: [layout().shard_numel].
  [[nodiscard]] const at::Tensor& shard() const { return shard_; }
  /// Whether the parameters are views of the shard, so that a model which changes a parameter in place
  /// changes the shard.
  [[nodiscard]] bool is_alias() const { return is_alias_; }
  /// The unsharded parameters in layout order, leaves of autograd if trainable. Their data may be touched
  /// only between finish_unshard() and reshard(), and never if the buffer is gathered in float8.
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// What is gathered in place of the parameters; null if the parameters are. Their scales must be up to date
  /// when the buffer is unsharded.
  [[nodiscard]] Float8Weights* float8_weights() const { return float8_.get(); }

  /// Gathers the parameters over the shard group, or over the reshard group if reshard_to() was called last.
  /// The gather is added to `gathers`, whose start() must follow, or has begun behind a copy to the device.
  void start_unshard(const MeshGroups& groups, Gathers& gathers);
  void finish_unshard();
  void reshard();
  /// Throws an Error of kind kUsage if a parameter has been changed in place, because reshard() would lose
  /// the change. Parameters that are views of the shard would keep it, and are not checked.
  void require_unchanged() const;
  /// Whether the memory of `tensor` is that of the unsharded parameters, and reshard() frees it.
  [[nodiscard]] bool frees_memory_of(const at::Tensor& tensor) const;
  /// Reshards to the reshard group: like reshard(), but this rank keeps its part of the parameters, cut over
  /// the ranks of `group` only, so that the next unshard gathers over fewer ranks.
  void reshard_to(const Group& group);
  /// Frees the part that reshard_to() kept.
  void drop_group_shard() { group_shard_.reset(); }
  [[nodiscard]] bool is_unsharded() const { return unsharded_; }

  /// Adds the gradient of parameter `index` to the flat gradient. Gradients add up over calls until reduce.
  void add_gradient(std::size_t index, const at::Tensor& gradient);
  /// Starts the reduce-scatter of the flat gradient to its mean over the shard group. The gradient of a
  /// parameter that has none counts as zero. With one shard there is no reduce-scatter.
  void start_reduce(Group& shard_group);
  void finish_reduce();
  /// Sets how start_average() and finish_average() take the mean from now on. Null means an all-reduce. Only
  /// for buffers of one shard, whose gradients are float32.
  void set_comm_hook(std::unique_ptr<CommHook> hook) { hook_ = std::move(hook); }
  [[nodiscard]] CommHook* comm_hook() const { return hook_.get(); }
  /// Takes the mean over the ranks of `group`, which have the same shard. Follows finish_reduce().
  void start_average(Group& group);
  void finish_average();
  /// Brings the reduced gradient into the dtype of the shard and into the storage. Follows finish_reduce()
  /// and finish_average(). If the storage is offloaded, release_reduced() must follow, and
  /// StorageDevice::synchronize() before the gradient is read.
  void finalize_gradient();
  void release_reduced();
  /// Whether the ranks of `group` have a shard each and are to gather and reduce: neither parameters that are
  /// replicated nor a rank that is alone need that.
  [[nodiscard]] bool is_spread_over(const Group& group) const;
  [[nodiscard]] bool is_offloaded() const { return storage_->is_offloaded(); }
  [[nodiscard]] at::Device compute_device() const { return pool_->device(); }
  /// The gradient of this rank's shard, from finalize_gradient() until clear_gradient().
  [[nodiscard]] const at::Tensor& gradient() const { return gradient_; }
  /// Drops that gradient. The optimizer may have used it to change the shard.
  void clear_gradient() {
    gradient_.reset();
    if (float8_ != nullptr) float8_->outdate_scales();
  }
  /// Which parameters got a gradient from this rank's calls of add_gradient() before the last start_reduce().
  [[nodiscard]] const std::vector<bool>& has_gradient() const { return has_gradient_; }

 private:
  void gather_shard(Group& group, Gathers& gathers);
  void wait_for_gather();
  [[nodiscard]] std::size_t unsharded_bytes() const {
    return static_cast<std::size_t>(layout_.numel()) * c10::elementSize(dtypes_.gathered());
  }
  void require_flat_gradient();
  [[nodiscard]] at::Tensor part_of(const at::Tensor& flat, std::size_t index) const;

  FlatLayout layout_;
  BufferDtypes dtypes_;
  GradientMean mean_;
  bool trainable_;
  std::shared_ptr<BufferPool> pool_;
  std::shared_ptr<StorageDevice> storage_;
  at::Tensor shard_;
  /// The whole buffer, [numel]. It shares its storage with the parameters, or with float8_.
  at::Tensor full_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<Float8Weights> float8_;
  bool is_alias_ = false;
  bool unsharded_ = false;
  std::unique_ptr<Copy> fetch_;  ///< Copies the shard to the device before the gather.
  Pending gather_;
  at::Tensor group_shard_;  ///< This rank's part for the reshard group, between forward and backward.

  at::Tensor flat_gradient_;  ///< The gradients, [numel], while gradients are added to it.
  std::vector<bool> has_gradient_;
  at::Tensor gradient_;
  Pending reduce_;
  std::unique_ptr<CommHook> hook_;
  Pending average_;
  at::Tensor stored_gradient_;  ///< It is in an offloaded storage, and kept over steps because it is pinned.
  at::Tensor reduced_;          ///< The gradient that is being copied to stored_gradient_.
  std::unique_ptr<Copy> store_;
};

}  // namespace accel::train
