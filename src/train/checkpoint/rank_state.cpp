#include "train/checkpoint/rank_state.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "train/fsdp/buffers/comm_hook.hpp"

namespace accel::train {
namespace {

PowerSgd* power_sgd_of(const FlatBuffer& buffer) {
  return buffer.comm_hook() == nullptr ? nullptr : buffer.comm_hook()->power_sgd();
}

std::string name_of_rank(int rank) { return fmt::format("rank_{}", rank); }
std::string name_of_buffer(std::size_t index) { return fmt::format("buffer_{}", index); }

/// The tensor `name` in host memory; undefined if the checkpoint does not have it.
at::Tensor read_tensor(CheckpointTensors& tensors, const std::string& name,
                       const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  const CheckpointTensors::Tensor* found = tensors.find(name);
  if (found == nullptr) return {};
  const auto wanted = ckpt::dtype_of_torch_name(c10::getDtypeNames(dtype).first);
  if (found->shape != shape || !wanted || found->dtype != *wanted) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}': '{}' is {} {}, and this run needs {} {}", tensors.path().string(), name,
                            ckpt::torch_name(found->dtype), ckpt::to_string(found->shape),
                            c10::getDtypeNames(dtype).first, ckpt::to_string(shape)))
        .hint("resume with the model and the training.ddp of the run that wrote the checkpoint");
  }
  at::Tensor host = at::empty(shape, at::TensorOptions().dtype(dtype));
  tensors.read(*found, *wanted, 0, {static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()});
  return host;
}

}  // namespace

RankState rank_state(const ShardedModel& model, const NamedTensors& persistent, bool adapter_only, int rank) {
  RankState state;
  const bool in_model = rank == 0 && !adapter_only;
  if (!in_model && (rank == 0 || !model.broadcasts_buffers())) {
    for (const auto& [name, tensor] : persistent)
      add_whole(state, {"training", name_of_rank(rank), "buffers", name}, tensor);
  }
  const std::vector<FlatBuffer*>& buffers = model.trainable_buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const PowerSgd* hook = power_sgd_of(*buffers[i]);
    if (hook == nullptr) continue;
    const PowerSgd::State hooked = hook->state();
    const auto path = [&](const char* what) {
      return ckpt::StatePath{"training", name_of_rank(rank), name_of_buffer(i), what};
    };
    if (hooked.error.defined()) add_whole(state, path("error"), hooked.error);
    if (hooked.qs.defined() && rank == 0) add_whole(state, path("q"), hooked.qs);
  }
  return state;
}

void restore_buffers(CheckpointTensors& tensors, ShardedModel& model, int rank) {
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, buffer] : model.persistent_buffers()) {
    at::Tensor value = read_tensor(tensors, name_of_rank(rank) + ".buffers." + name, buffer.sizes().vec(),
                                   buffer.scalar_type());
    if (value.defined()) values.emplace(name, std::move(value));
  }
  model.set_persistent_buffers(values);
}

void restore_rank_state(CheckpointTensors& tensors, ShardedModel& model, int rank) {
  const std::string own = name_of_rank(rank) + ".";
  if (!model.broadcasts_buffers()) restore_buffers(tensors, model, rank);
  const std::vector<FlatBuffer*>& buffers = model.trainable_buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    PowerSgd* hook = power_sgd_of(*buffers[i]);
    if (hook == nullptr) continue;
    const auto read = [&](const std::string& name, std::int64_t numel) {
      const at::Tensor host = read_tensor(tensors, name, {numel}, buffers[i]->comm_hook()->power_sgd_dtype());
      return host.defined() ? host.to(buffers[i]->compute_device()) : host;
    };
    PowerSgd::State state = hook->state();
    state.error = read(own + name_of_buffer(i) + ".error", buffers[i]->layout().numel());
    state.qs = read(name_of_rank(0) + "." + name_of_buffer(i) + ".q", hook->q_numel());
    hook->restore(std::move(state));
  }
}

std::optional<ckpt::PowerSgdState> power_sgd_state(const ShardedModel& model) {
  std::optional<ckpt::PowerSgdState> state;
  for (const FlatBuffer* buffer : model.trainable_buffers()) {
    const PowerSgd* hook = power_sgd_of(*buffer);
    if (hook == nullptr) continue;
    if (!state) state.emplace();
    state->draws = model.hook_seeds().draws();
    state->iterations.push_back(hook->state().iteration);
  }
  return state;
}

void restore_power_sgd(const ckpt::PowerSgdState& state, ShardedModel& model) {
  const std::vector<FlatBuffer*>& buffers = model.trainable_buffers();
  for (std::size_t i = 0; i < buffers.size() && i < state.iterations.size(); ++i) {
    if (PowerSgd* hook = power_sgd_of(*buffers[i]); hook != nullptr)
      hook->restore({state.iterations[i], {}, {}});
  }
  model.hook_seeds().skip(state.draws);
}

}  // namespace accel::train
