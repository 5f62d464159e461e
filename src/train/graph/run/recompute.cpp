#include "train/graph/run/recompute.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/intrusive_ptr.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "train/device/saved_activations.hpp"
#include "train/graph/run/autocast.hpp"
#include "train/graph/run/executor.hpp"
#include "train/graph/run/module_state.hpp"
#include "train/graph/run/random_state.hpp"
#include "train/graph/tensors.hpp"

namespace accel::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<std::int64_t> versions_of(std::span<const at::Tensor> tensors) {
  std::vector<std::int64_t> versions;
  versions.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) versions.push_back(tensor._version());
  return versions;
}

/// One call that backward recomputes.
struct Call final : torch::CustomClassHolder {
  c10::IValue self;
  UnitBody body;
  UnitHooks* hooks = nullptr;
  std::vector<c10::IValue> arguments;  ///< After the call they have `hole` in place of each tensor.
  c10::IValue result;                  ///< It has `hole` in place of each tensor.
  std::shared_ptr<const ModuleState> state;
  std::optional<StateSnapshot> snapshot;  ///< The state before the call.
  std::vector<std::size_t> read_slots;    ///< Slots of the state whose tensors require grad: inputs.
  std::vector<std::size_t> result_slots;  ///< Slots into which the call has put results.
  /// The results in result_slots, not owned.
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>> slot_results;
  at::Tensor hole = at::empty({0});
  std::vector<bool> requires_grad;  ///< One flag for each tensor of the arguments.
  RandomState random;
  AutocastState autocast;
  std::shared_ptr<OffloadedActivations> activations;  ///< The arguments, if autograd does not save them.

  /// After backward: detaches the results in the state, so that they no longer refer to this call.
  void release() {
    for (std::size_t i = 0; i < slot_results.size(); ++i) {
      const ModuleState::Slot& slot = state->slots()[result_slots[i]];
      const auto held = slot_results[i].lock();
      if (held && slot.value().isTensor() && slot.value().toTensor().unsafeGetTensorImpl() == held.get())
        slot.set(slot.value().toTensor().detach());
    }
    snapshot.reset();
    activations.reset();
  }

  [[nodiscard]] c10::IValue run(const std::vector<c10::IValue>& with) const {
    std::vector<c10::IValue> inputs{self};
    inputs.insert(inputs.end(), with.begin(), with.end());
    return body(inputs);
  }
};

constexpr const char* kCall = "call";

void require_unchanged(std::span<const at::Tensor> tensors, std::span<const std::int64_t> versions,
                       const UnitHooks& hooks) {
  if (versions_of(tensors) == std::vector(versions.begin(), versions.end())) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("activation checkpointing: '{}' changes one of its arguments in place, so it "
                          "cannot be recomputed in backward",
                          hooks.name()))
      .hint("wrap another module, or set fsdp_activation_checkpointing: false");
}

// The gradient of a tensor that is added to a container would be lost.
void require_same_containers(std::span<const c10::IValue> arguments, std::span<const at::Tensor> tensors,
                             const UnitHooks& hooks) {
  variable_list now;
  for (const c10::IValue& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) { now.push_back(tensor); });
  if (are_same(now, tensors)) return;
  throw Error(
      ErrorKind::kUsage,
      fmt::format("activation checkpointing: '{}' changes one of its arguments, a list or a dict, so a "
                  "gradient would be lost",
                  hooks.name()))
      .hint("return it, wrap another module, or set fsdp_activation_checkpointing: false");
}

// The tensors in an object are not visible, so that their gradients would be lost.
void require_no_object(std::span<const c10::IValue> values, const UnitHooks& hooks, const char* does) {
  if (std::none_of(values.begin(), values.end(), holds_object)) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("activation checkpointing: '{}' {} an object of a class; only tensors, "
                          "tuples, lists, dicts and plain values can be saved",
                          hooks.name(), does))
      .hint("wrap another module, or set fsdp_activation_checkpointing: false");
}

/// Sets the state of the thread for a recomputation: backward may run on another thread than forward.
class RecomputeScope {
 public:
  explicit RecomputeScope(const Call& call)
      : autocast_(call.autocast), random_(call.random, call.hooks->device()) {
    use_simple_executor();
  }

 private:
  at::AutoGradMode grad_mode_{true};
  AutocastScope autocast_;
  RandomStateGuard random_;
};

class Recompute {
 public:
  explicit Recompute(const Call& call) : call_(call) { call_.hooks->before_recompute(); }
  ~Recompute() { call_.hooks->after_recompute(); }
  Recompute(const Recompute&) = delete;
  Recompute& operator=(const Recompute&) = delete;

  variable_list run(const variable_list& inputs) {
    std::size_t next = 0;
    std::vector<c10::IValue> arguments;
    for (const c10::IValue& argument : call_.arguments)
      arguments.push_back(map_tensors(argument, [&](const at::Tensor&) { return inputs.at(next++); }));
    RECORD_USER_SCOPE("unit " + call_.hooks->name() + ", recomputed");
    const RecomputeScope scope(call_);
    const SnapshotScope snapshot(*call_.state, *call_.snapshot, call_.hooks->name());
    for (const std::size_t slot : call_.read_slots) call_.state->slots()[slot].set(inputs.at(next++));
    const ModuleState::TensorVersions versions = call_.state->tensor_versions();
    const c10::IValue result = call_.run(arguments);
    variable_list outputs;
    for_each_tensor(result, [&](const at::Tensor& tensor) { outputs.push_back(tensor); });
    for (const std::size_t slot : call_.result_slots) {
      const c10::IValue& value = call_.state->slots()[slot].value();
      outputs.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
    require_no_other_gradient(versions);
    return outputs;
  }

 private:
  /// The gradient of a tensor that the body has put anywhere but into the result and `result_slots` would be
  /// lost.
  void require_no_other_gradient(const ModuleState::TensorVersions& versions) const {
    const std::vector<std::size_t>& results = call_.result_slots;
    for (std::size_t i = 0; i < call_.state->slots().size(); ++i) {
      if (std::find(results.begin(), results.end(), i) != results.end()) continue;
      const ModuleState::Slot& slot = call_.state->slots()[i];
      for_each_tensor(slot.value(), [&](const at::Tensor& tensor) {
        if (!tensor.requires_grad() || tensor.is_leaf() || contains(versions, tensor)) return;
        throw Error(
            ErrorKind::kUsage,
            fmt::format("activation checkpointing: '{}' stores a tensor in '{}', so its gradient would "
                        "be lost",
                        call_.hooks->name(), slot.name))
            .hint(
                "store its .detach(), or store it in an attribute of its own that is not a buffer, or "
                "return it");
      });
    }
  }

  const Call& call_;
};

/// The slots whose tensors require grad already, from another unit or an earlier call.
std::vector<std::size_t> slots_with_gradient(const ModuleState& state) {
  std::vector<std::size_t> slots;
  for (std::size_t i = 0; i < state.slots().size(); ++i) {
    const c10::IValue& value = state.slots()[i].value();
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad())
      slots.push_back(i);
  }
  return slots;
}

/// The slots into which the call has put a tensor that may have a gradient. Buffers are state and do not
/// count.
std::vector<std::size_t> slots_with_results(const ModuleState& state,
                                            const ModuleState::TensorVersions& versions) {
  std::vector<std::size_t> slots;
  for (std::size_t i = 0; i < state.slots().size(); ++i) {
    const c10::IValue& value = state.slots()[i].value();
    if (state.slots()[i].is_buffer || !value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (tensor.is_floating_point() && !contains(versions, tensor)) slots.push_back(i);
  }
  return slots;
}

class Recomputed final : public torch::autograd::Function<Recomputed> {
 public:
  static variable_list forward(AutogradContext* context, c10::intrusive_ptr<Call> call,
                               at::TensorList tensors) {
    const std::span inputs(tensors.data(),
                           tensors.size() - 1);  // The last tensor is left out: it always requires grad.
    for (const at::Tensor& input : inputs) call->requires_grad.push_back(input.requires_grad());
    const std::vector<std::int64_t> versions = versions_of(inputs);

    const at::Device device = call->hooks->device();
    call->random = RandomState::now(device);
    if (UnitActivations* unit = call->hooks->saved_activations()) call->activations = unit->offload(inputs);
    call->autocast = AutocastState::now(device.type());
    const ModuleState& state = *call->state;
    call->snapshot.emplace(state);
    const c10::IValue result = [&] {
      const AutocastScope without_grad(call->autocast, /*caches=*/false);
      return call->run(call->arguments);
    }();

    require_unchanged(inputs, versions, *call->hooks);
    require_same_containers(call->arguments, inputs.first(inputs.size() - call->read_slots.size()),
                            *call->hooks);
    call->result_slots = slots_with_results(state, call->snapshot->tensor_versions());
    call->snapshot->finish();
    require_no_object({&result, 1}, *call->hooks, "returns");
    const auto to_hole = [&](const at::Tensor&) { return call->hole; };
    for (c10::IValue& argument : call->arguments) argument = map_tensors(argument, to_hole);
    variable_list outputs;
    // A parameter is a leaf with memory of the unit. The output must be neither.
    const auto add_output = [&](const at::Tensor& tensor) {
      const bool is_own = (tensor.is_leaf() && tensor.requires_grad()) || call->hooks->owns(tensor);
      outputs.push_back(is_own ? tensor.clone() : tensor);
      return call->hole;
    };
    call->result = map_tensors(result, add_output);
    for (const std::size_t slot : call->result_slots) add_output(state.slots()[slot].value().toTensor());
    if (call->activations != nullptr) {
      call->activations->release();  // The tensors were copied while the body ran.
    } else {
      context->save_for_backward(variable_list(inputs.begin(), inputs.end()));
    }
    context->saved_data[kCall] = c10::IValue::make_capsule(call);
    context->set_materialize_grads(false);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto target = context->saved_data.at(kCall).toCapsule();
    auto& call = static_cast<Call&>(*target);
    Recompute again(call);
    const variable_list saved =
        call.activations != nullptr ? call.activations->take() : context->get_saved_variables();
    variable_list inputs;
    for (const at::Tensor& tensor : saved)
      inputs.push_back(tensor.detach().set_requires_grad(call.requires_grad[inputs.size()]));
    const variable_list outputs = again.run(inputs);
    if (outputs.size() != gradients.size()) {
      throw Error(
          ErrorKind::kFailure,
          fmt::format("activation checkpointing: '{}' returned {} tensors in forward and {} in recomputation",
                      call.hooks->name(), gradients.size(), outputs.size()));
    }
    variable_list roots;
    variable_list root_gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    call.release();

    variable_list result{at::Tensor()};  // The call gets no gradient.
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    result.emplace_back();  // The tensor that always requires grad gets no gradient.
    return result;
  }
};

}  // namespace

c10::IValue call_recomputed(const c10::IValue& self, UnitBody body, std::span<const c10::IValue> arguments,
                            UnitHooks& hooks) {
  require_no_object(arguments, hooks, "takes");
  auto call = c10::make_intrusive<Call>();
  call->self = self;
  call->body = std::move(body);
  call->hooks = &hooks;
  call->state = hooks.state() != nullptr ? hooks.state() : std::make_shared<ModuleState>(self);
  call->arguments.assign(arguments.begin(), arguments.end());
  variable_list tensors;
  for (const c10::IValue& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  call->read_slots = slots_with_gradient(*call->state);
  for (const std::size_t slot : call->read_slots)
    tensors.push_back(call->state->slots()[slot].value().toTensor());
  // Parameters are not arguments: without this tensor no backward would come through a unit whose arguments
  // do not require grad.
  tensors.push_back(at::empty({0}).requires_grad_());
  const variable_list outputs = Recomputed::apply(call, at::TensorList(tensors));
  std::size_t next = 0;
  c10::IValue result = map_tensors(call->result, [&](const at::Tensor&) { return outputs.at(next++); });
  for (const std::size_t slot : call->result_slots) {
    call->slot_results.emplace_back(outputs.at(next).getIntrusivePtr());
    call->state->slots()[slot].set(outputs.at(next++));
  }
  return result;
}

}  // namespace accel::train
