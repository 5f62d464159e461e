#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plan/flat_layout.hpp"
#include "train/c10d/mesh_groups.hpp"
#include "train/device/storage_device.hpp"
#include "train/fsdp/buffer_pool.hpp"
#include "train/fsdp/comm_hook.hpp"
#include "train/fsdp/gradient_mean.hpp"

namespace accel::train {

/// Of a flat buffer. They differ in mixed precision only.
struct BufferDtypes {
  at::ScalarType shard = at::kFloat;    ///< Of the shard and its gradient, for the optimizer.
  at::ScalarType compute = at::kFloat;  ///< Of the unsharded parameters.
  at::ScalarType reduce = at::kFloat;   ///< Of the unsharded gradient.

  static BufferDtypes all(at::ScalarType dtype) { return {dtype, dtype, dtype}; }
};

/// The parameters of one unit that share a dtype and requires_grad, as one flat buffer.
///
/// This rank keeps its shard, and the gradient of it for the optimizer, in a storage, which may be apart from
/// the device that computes; all else is on that device. Unsharded, the parameters are views of the flat
/// buffer's storage: the all-gather writes straight into them. Resharding frees the storage's memory and
/// keeps the tensors. With one shard that is the whole buffer, and the parameters are views of it for good,
/// unless they compute in another dtype or elsewhere: then they are a copy.
///
/// unshard, reduce and average are collective: every rank calls them for the same buffers in the same order.
class FlatBuffer {
 public:
  FlatBuffer(FlatLayout layout, BufferDtypes dtypes, bool trainable, std::shared_ptr<BufferPool> pool,
             std::shared_ptr<StorageDevice> storage);
  FlatBuffer(const FlatBuffer&) = delete;
  FlatBuffer& operator=(const FlatBuffer&) = delete;

  [[nodiscard]] const FlatLayout& layout() const { return layout_; }
  [[nodiscard]] bool trainable() const { return trainable_; }
  /// Of the shard.
  [[nodiscard]] at::ScalarType dtype() const { return dtypes_.shard; }
  /// This rank's elements: [layout().shard_numel].
  [[nodiscard]] const at::Tensor& shard() const { return shard_; }
  /// The unsharded parameters in layout order, leaves of autograd if trainable. Their data may be touched
  /// only between finish_unshard() and reshard().
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// Gathers the parameters over the shard group, or over the reshard group if reshard_to() was called last.
  void start_unshard(const MeshGroups& groups);
  void finish_unshard();
  void reshard();
  /// Throws an Error of kind kUsage if a parameter has been changed in place, which reshard() would forget;
  /// with one shard it would not.
  void require_unchanged() const;
  /// Whether the memory of `tensor` is that of the unsharded parameters, and reshard() frees it.
  [[nodiscard]] bool frees_memory_of(const at::Tensor& tensor) const;
  /// Instead of reshard(): keeps a larger part than the shard, which the ranks of `group` have between them.
  void reshard_to(const Group& group);
  /// Forgets the part that reshard_to() kept.
  void drop_kept() { kept_.reset(); }
  [[nodiscard]] bool is_unsharded() const { return unsharded_; }

  /// Adds the gradient of parameter `index` to the flat gradient. Gradients add up over calls until reduce.
  void add_gradient(std::size_t index, const at::Tensor& gradient);
  /// Starts the reduce-scatter of the flat gradient to the mean over the shard group; parameters without a
  /// gradient count as zero. With one shard there is nothing to wait for.
  void start_reduce(Group& shard_group);
  void finish_reduce();
  /// How start_average() and finish_average() take the mean from now on; null: by an all-reduce. For buffers
  /// of one shard, whose gradients are float32.
  void set_comm_hook(std::unique_ptr<CommHook> hook) { hook_ = std::move(hook); }
  [[nodiscard]] CommHook* comm_hook() const { return hook_.get(); }
  /// After finish_reduce(): the mean over the ranks of `group`, which have the same shard.
  void start_average(Group& group);
  void finish_average();
  /// After these: brings the gradient into the dtype of the shard, and into the storage. If that is apart,
  /// let_go_of_reduced() must follow, and StorageDevice::synchronize() before the gradient is read.
  void settle_gradient();
  void let_go_of_reduced();
  [[nodiscard]] bool is_stored_apart() const { return storage_->is_offloaded(); }
  [[nodiscard]] at::Device compute_device() const { return pool_->device(); }
  /// The gradient of this rank's shard after all these, until clear_gradient().
  [[nodiscard]] const at::Tensor& gradient() const { return gradient_; }
  void clear_gradient() { gradient_.reset(); }
  /// Which parameters got a gradient from this rank's calls of add_gradient() before the last start_reduce().
  [[nodiscard]] const std::vector<bool>& has_gradient() const { return has_gradient_; }

 private:
  void gather_shard(Group& group);
  void wait_for_gather();
  void require_flat_gradient();
  [[nodiscard]] at::Tensor part_of(const at::Tensor& flat, std::size_t index) const;

  FlatLayout layout_;
  BufferDtypes dtypes_;
  GradientMean mean_;
  bool trainable_;
  std::shared_ptr<BufferPool> pool_;
  std::shared_ptr<StorageDevice> storage_;
  at::Tensor shard_;
  at::Tensor full_;  ///< [numel], on the storage that the parameters are views of.
  std::vector<at::Tensor> parameters_;
  bool is_alias_ = false;  ///< The parameters are views of the shard.
  bool unsharded_ = false;
  std::unique_ptr<Copy> fetch_;  ///< Of the shard, in front of the gather.
  Pending gather_;
  at::Tensor kept_;  ///< Between forward and backward, if a group of ranks keeps the buffer.

  at::Tensor flat_gradient_;  ///< [numel], while gradients are coming in.
  std::vector<bool> has_gradient_;
  at::Tensor gradient_;
  Pending reduce_;
  std::unique_ptr<CommHook> hook_;
  Pending average_;
  at::Tensor stored_gradient_;  ///< Where it goes if the storage is apart; kept over steps, as it is pinned.
  at::Tensor reduced_;          ///< What is being copied there.
  std::unique_ptr<Copy> store_;
};

}  // namespace accel::train
