#include "train/fsdp/buffers/flat_buffer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"

namespace accel::train {
namespace {

c10::Storage storage_of(std::size_t bytes, at::DataPtr data) {
  return {c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr, /*resizable=*/false};
}

/// What a collective sends of a tensor. Not every backend supports float8.
at::Tensor sendable(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat8_e4m3fn ? tensor.view(at::kByte) : tensor;
}

}  // namespace

FlatBuffer::FlatBuffer(FlatLayout layout, BufferDtypes dtypes, bool trainable,
                       std::shared_ptr<BufferPool> pool, std::shared_ptr<StorageDevice> storage)
    : layout_(std::move(layout)),
      dtypes_(dtypes),
      mean_(layout_.mesh, dtypes.reduce),
      trainable_(trainable),
      pool_(std::move(pool)),
      storage_(std::move(storage)),
      is_alias_(layout_.mesh.shards() == 1 && dtypes_.gathered() == dtypes_.shard &&
                !storage_->is_offloaded()) {
  shard_ = storage_->empty(layout_.shard_numel, dtypes_.shard).zero_();
  const c10::Storage memory =
      is_alias_ ? shard_.storage() : storage_of(unsharded_bytes(), pool_->allocate(unsharded_bytes()));
  full_ = tensor_on(memory, 0, {layout_.numel()}, dtypes_.gathered());
  if (dtypes_.gathers_float8) float8_ = std::make_unique<Float8Weights>(layout_, memory);
  const auto elements = static_cast<std::size_t>(layout_.numel());
  const c10::Storage of_parameters =
      float8_ == nullptr
          ? memory
          : storage_of(elements * c10::elementSize(dtypes_.compute), {nullptr, pool_->device()});
  for (const FlatParameter& parameter : layout_.parameters) {
    at::Tensor view = tensor_on(of_parameters, parameter.offset, parameter.spec.shape, dtypes_.compute);
    if (trainable_) view.set_requires_grad(true);
    parameters_.push_back(std::move(view));
  }
  if (float8_ != nullptr) of_parameters.unsafeGetStorageImpl()->set_nbytes(0);
  unsharded_ = true;
  reshard();
}

bool FlatBuffer::is_spread_over(const Group& group) const {
  return layout_.mesh.shards() == group.size() && !group.is_alone();
}

void FlatBuffer::start_unshard(const MeshGroups& groups, Gathers& gathers) {
  if (unsharded_) return;
  c10::StorageImpl* storage = full_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(pool_->allocate(unsharded_bytes()));
  storage->set_nbytes(unsharded_bytes());
  if (group_shard_.defined()) {
    gathers.add(*groups.reshard(), sendable(full_), sendable(group_shard_), gather_);
  } else {
    gather_shard(groups.shard(), gathers);
  }
  unsharded_ = true;
}

// The gather is in the dtype of the unsharded parameters, so that 16-bit parameters send half of the bytes:
// the shard is cast into its place in the flat buffer and gathered from there. An offloaded shard is copied
// there.
void FlatBuffer::gather_shard(Group& group, Gathers& gathers) {
  if (dtypes_.gathered() == dtypes_.shard && !storage_->is_offloaded()) {
    return gathers.add(group, full_, shard_, gather_);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor own = full_.narrow(0, group.rank() * layout_.shard_numel, layout_.shard_numel);
  StorageDevice::Conversion cast;
  if (float8_ != nullptr) {
    cast = [this, shard = group.rank()](const at::Tensor& to, const at::Tensor& from) {
      float8_->cast(to, from, shard);
    };
  }
  fetch_ = storage_->fetch(own, shard_, cast);
  if (!is_spread_over(group)) return;
  if (!storage_->is_offloaded()) return gathers.add(group, sendable(full_), sendable(own), gather_);
  fetch_->then([&] { gather_ = group.all_gather(sendable(full_), sendable(own)); });
}

void FlatBuffer::wait_for_gather() {
  gather_.wait();
  if (fetch_ != nullptr) std::exchange(fetch_, nullptr)->wait_on_stream();
}

void FlatBuffer::finish_unshard() {
  wait_for_gather();
  group_shard_.reset();
}

void FlatBuffer::reshard() {
  if (!unsharded_ || is_alias_) return;
  wait_for_gather();
  c10::StorageImpl* storage = full_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, pool_->device()));
  storage->set_nbytes(0);
  unsharded_ = false;
}

// Autograd and the engine do not change the versions of the parameters.
void FlatBuffer::require_unchanged() const {
  if (!unsharded_ || is_alias_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i]._version() == 0) continue;
    throw Error(ErrorKind::kUsage, fmt::format("parameter '{}' is changed in place while the model runs; its "
                                               "shards would lose the change",
                                               layout_.parameters[i].spec.fqns.front()))
        .hint("compute with a changed copy instead, or train with distributed_type: MULTI_CPU or MULTI_GPU");
  }
}

bool FlatBuffer::frees_memory_of(const at::Tensor& tensor) const {
  return !is_alias_ && tensor.has_storage() &&
         tensor.storage().unsafeGetStorageImpl() == full_.storage().unsafeGetStorageImpl();
}

void FlatBuffer::reshard_to(const Group& group) {
  if (is_alias_) return;
  if (layout_.mesh.shards() == 1) return;
  require_unchanged();
  const at::NoGradGuard no_grad;
  const std::int64_t part = layout_.numel() / group.size();
  group_shard_ = pool_->empty(part, dtypes_.gathered());
  group_shard_.copy_(full_.narrow(0, group.rank() * part, part));
  reshard();
}

at::Tensor FlatBuffer::part_of(const at::Tensor& flat, std::size_t index) const {
  const FlatParameter& parameter = layout_.parameters[index];
  return flat.narrow(0, parameter.offset, parameter.numel).view(parameter.spec.shape);
}

void FlatBuffer::require_flat_gradient() {
  if (flat_gradient_.defined()) return;
  flat_gradient_ = pool_->empty(layout_.numel(), dtypes_.reduce);
  has_gradient_.assign(layout_.parameters.size(), false);
  for (const ElementRange& gap : gaps_of(layout_)) flat_gradient_.narrow(0, gap.begin, gap.size()).zero_();
}

void FlatBuffer::add_gradient(std::size_t index, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  if (gradient_.defined()) {
    throw Error(ErrorKind::kFailure, fmt::format("a gradient of '{}' came after it had been reduced",
                                                 layout_.parameters[index].spec.fqns.front()));
  }
  require_flat_gradient();
  at::Tensor part = part_of(flat_gradient_, index);
  // Embeddings with sparse=True have sparse gradients. The reduction is dense anyway.
  const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  if (has_gradient_[index]) {
    part.add_(dense);
  } else {
    part.copy_(dense);
    has_gradient_[index] = true;
  }
}

void FlatBuffer::start_reduce(Group& shard_group) {
  const at::NoGradGuard no_grad;
  require_flat_gradient();
  for (std::size_t i = 0; i < has_gradient_.size(); ++i) {
    if (!has_gradient_[i]) part_of(flat_gradient_, i).zero_();
  }
  mean_.begin(flat_gradient_);
  if (!is_spread_over(shard_group)) {
    gradient_ = std::exchange(flat_gradient_, {});
    return;
  }
  gradient_ = at::empty({layout_.shard_numel}, flat_gradient_.options());
  reduce_ = mean_.reduce_scatter(shard_group, gradient_, flat_gradient_);
}

void FlatBuffer::finish_reduce() {
  const at::NoGradGuard no_grad;
  reduce_.wait();
  flat_gradient_.reset();
}

void FlatBuffer::start_average(Group& group) {
  if (hook_ != nullptr) return hook_->start(group, gradient_);
  average_ = mean_.all_reduce(group, gradient_);
}

void FlatBuffer::finish_average() {
  const at::NoGradGuard no_grad;
  if (hook_ != nullptr) return hook_->finish();
  average_.wait();
}

void FlatBuffer::finalize_gradient() {
  const at::NoGradGuard no_grad;
  mean_.end(gradient_);
  if (!storage_->is_offloaded()) {
    gradient_ = gradient_.to(dtypes_.shard);
    return;
  }
  if (!stored_gradient_.defined()) stored_gradient_ = storage_->empty(layout_.shard_numel, dtypes_.shard);
  reduced_ = std::exchange(gradient_, stored_gradient_);
  store_ = storage_->store(stored_gradient_, reduced_);
}

void FlatBuffer::release_reduced() {
  if (store_ != nullptr) std::exchange(store_, nullptr)->wait_on_stream();
  reduced_.reset();
}

}  // namespace accel::train
