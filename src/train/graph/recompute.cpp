#include "train/graph/recompute.hpp"

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
#include "train/graph/autocast.hpp"
#include "train/graph/executor.hpp"
#include "train/graph/module_state.hpp"
#include "train/graph/random_state.hpp"
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

/// One call that will run again.
struct Call final : torch::CustomClassHolder {
  c10::IValue self;
  torch::jit::Function* body = nullptr;
  UnitHooks* hooks = nullptr;
  std::vector<c10::IValue>
      arguments;       ///< As they came, until the first run; then with `hole` for each tensor.
  c10::IValue result;  ///< With `hole` for each tensor.
  std::shared_ptr<const ModuleState> state;
  std::optional<StateBefore> before;    ///< What the first run saw of it.
  std::vector<std::size_t> read_slots;  ///< Of the state: those with a gradient, which are inputs.
  std::vector<std::size_t> kept_slots;  ///< Those into which it has put results.
  /// What came out of these, as long as somebody holds it.
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>> kept_results;
  at::Tensor hole = at::empty({0});
  std::vector<bool> requires_grad;  ///< Of each tensor of the arguments.
  RandomState random;
  AutocastState autocast;
  std::shared_ptr<OffloadedActivations>
      kept;  ///< The tensors of the arguments, if autograd does not save them.

  /// After backward: what the state holds of this call must not lead back here any more.
  void let_go() {
    for (std::size_t i = 0; i < kept_results.size(); ++i) {
      const ModuleState::Slot& slot = state->slots()[kept_slots[i]];
      const auto held = kept_results[i].lock();
      if (held && slot.value().isTensor() && slot.value().toTensor().unsafeGetTensorImpl() == held.get())
        slot.set(slot.value().toTensor().detach());
    }
    before.reset();
    kept.reset();
  }

  [[nodiscard]] c10::IValue run(const std::vector<c10::IValue>& with) const {
    torch::jit::Stack stack{self};
    stack.insert(stack.end(), with.begin(), with.end());
    body->run(stack);
    return std::move(stack.back());
  }
};

constexpr const char* kCall = "call";

void require_unchanged(std::span<const at::Tensor> tensors, std::span<const std::int64_t> versions,
                       const UnitHooks& hooks) {
  if (versions_of(tensors) == std::vector(versions.begin(), versions.end())) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("activation checkpointing: '{}' changes one of its arguments in place, so it "
                          "cannot run again in backward",
                          hooks.name()))
      .hint("wrap another module, or set fsdp_activation_checkpointing: false");
}

// Nobody would see its gradient.
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

// Gradients would be lost: what an object holds is not seen.
void require_no_object(std::span<const c10::IValue> values, const UnitHooks& hooks, const char* does) {
  if (std::none_of(values.begin(), values.end(), holds_object)) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("activation checkpointing: '{}' {} an object of a class; tensors, "
                          "tuples, lists, dicts and plain values can be kept",
                          hooks.name(), does))
      .hint("wrap another module, or set fsdp_activation_checkpointing: false");
}

/// What the second run needs that belongs to the thread: backward may be on another one than forward.
class SecondRun {
 public:
  explicit SecondRun(const Call& call)
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
    RECORD_USER_SCOPE("unit " + call_.hooks->name() + ", again");
    const SecondRun second(call_);
    const StateAside aside(*call_.state, *call_.before, call_.hooks->name());
    for (const std::size_t slot : call_.read_slots) call_.state->slots()[slot].set(inputs.at(next++));
    const ModuleState::Marks marks = call_.state->marks();
    const c10::IValue result = call_.run(arguments);
    variable_list outputs;
    for_each_tensor(result, [&](const at::Tensor& tensor) { outputs.push_back(tensor); });
    for (const std::size_t slot : call_.kept_slots) {
      const c10::IValue& value = call_.state->slots()[slot].value();
      outputs.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
    require_no_other_gradient(marks);
    return outputs;
  }

 private:
  /// That of what the run has put anywhere but into the result and `kept_slots` would be lost.
  void require_no_other_gradient(const ModuleState::Marks& marks) const {
    const std::vector<std::size_t>& kept = call_.kept_slots;
    for (std::size_t i = 0; i < call_.state->slots().size(); ++i) {
      if (std::find(kept.begin(), kept.end(), i) != kept.end()) continue;
      const ModuleState::Slot& slot = call_.state->slots()[i];
      for_each_tensor(slot.value(), [&](const at::Tensor& tensor) {
        if (!tensor.requires_grad() || tensor.is_leaf() || is_marked(tensor, marks)) return;
        throw Error(
            ErrorKind::kUsage,
            fmt::format("activation checkpointing: '{}' keeps a tensor in '{}', so its gradient would "
                        "be lost",
                        call_.hooks->name(), slot.name))
            .hint(
                "keep it as .detach() makes it, or in an attribute of its own that is no buffer, or return "
                "it");
      });
    }
  }

  const Call& call_;
};

/// The slots with what has a gradient already, that of another unit or of an earlier call.
std::vector<std::size_t> slots_with_gradient(const ModuleState& state) {
  std::vector<std::size_t> slots;
  for (std::size_t i = 0; i < state.slots().size(); ++i) {
    const c10::IValue& value = state.slots()[i].value();
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad())
      slots.push_back(i);
  }
  return slots;
}

/// The slots into which the first run has put a tensor, if that may be more than state: attributes that are
/// no buffers.
std::vector<std::size_t> slots_with_results(const ModuleState& state, const ModuleState::Marks& marks) {
  std::vector<std::size_t> slots;
  for (std::size_t i = 0; i < state.slots().size(); ++i) {
    const c10::IValue& value = state.slots()[i].value();
    if (state.slots()[i].is_buffer || !value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (tensor.is_floating_point() && !is_marked(tensor, marks)) slots.push_back(i);
  }
  return slots;
}

class Recomputed final : public torch::autograd::Function<Recomputed> {
 public:
  static variable_list forward(AutogradContext* context, c10::intrusive_ptr<Call> call,
                               at::TensorList tensors) {
    const std::span inputs(tensors.data(), tensors.size() - 1);  // Without the one that always requires grad.
    for (const at::Tensor& input : inputs) call->requires_grad.push_back(input.requires_grad());
    const std::vector<std::int64_t> versions = versions_of(inputs);

    const at::Device device = call->hooks->device();
    call->random = RandomState::now(device);
    if (UnitActivations* kept = call->hooks->kept()) call->kept = kept->offload(inputs);
    call->autocast = AutocastState::now(device.type());
    const ModuleState& state = *call->state;
    call->before.emplace(state);
    const c10::IValue result = [&] {
      const AutocastScope without_grad(call->autocast, /*keeps=*/false);
      return call->run(call->arguments);
    }();

    require_unchanged(inputs, versions, *call->hooks);
    require_same_containers(call->arguments, inputs.first(inputs.size() - call->read_slots.size()),
                            *call->hooks);
    call->kept_slots = slots_with_results(state, call->before->marks());
    call->before->finish();
    require_no_object({&result, 1}, *call->hooks, "returns");
    const auto to_hole = [&](const at::Tensor&) { return call->hole; };
    for (c10::IValue& argument : call->arguments) argument = map_tensors(argument, to_hole);
    variable_list outputs;
    // A parameter is a leaf, and its memory the unit's: what goes out is neither.
    const auto add_output = [&](const at::Tensor& tensor) {
      const bool is_own = (tensor.is_leaf() && tensor.requires_grad()) || call->hooks->owns(tensor);
      outputs.push_back(is_own ? tensor.clone() : tensor);
      return call->hole;
    };
    call->result = map_tensors(result, add_output);
    for (const std::size_t slot : call->kept_slots) add_output(state.slots()[slot].value().toTensor());
    if (call->kept != nullptr) {
      call->kept->release();  // Copied while the body ran.
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
    const variable_list saved = call.kept != nullptr ? call.kept->take() : context->get_saved_variables();
    variable_list inputs;
    for (const at::Tensor& tensor : saved)
      inputs.push_back(tensor.detach().set_requires_grad(call.requires_grad[inputs.size()]));
    const variable_list outputs = again.run(inputs);
    if (outputs.size() != gradients.size()) {
      throw Error(
          ErrorKind::kFailure,
          fmt::format(
              "activation checkpointing: '{}' returned {} tensors in forward and {} when it ran again",
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
    call.let_go();

    variable_list result{at::Tensor()};  // Of the call.
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    result.emplace_back();  // Of the tensor that always requires grad.
    return result;
  }
};

}  // namespace

c10::IValue call_recomputed(const c10::IValue& self, torch::jit::Function& body,
                            std::span<const c10::IValue> arguments, UnitHooks& hooks) {
  require_no_object(arguments, hooks, "takes");
  auto call = c10::make_intrusive<Call>();
  call->self = self;
  call->body = &body;
  call->hooks = &hooks;
  call->state = hooks.state() != nullptr ? hooks.state() : std::make_shared<ModuleState>(self);
  call->arguments.assign(arguments.begin(), arguments.end());
  variable_list tensors;
  for (const c10::IValue& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  call->read_slots = slots_with_gradient(*call->state);
  for (const std::size_t slot : call->read_slots)
    tensors.push_back(call->state->slots()[slot].value().toTensor());
  // Parameters are no arguments: without it no backward would come through a unit whose arguments need none.
  tensors.push_back(at::empty({0}).requires_grad_());
  const variable_list outputs = Recomputed::apply(call, at::TensorList(tensors));
  std::size_t next = 0;
  c10::IValue result = map_tensors(call->result, [&](const at::Tensor&) { return outputs.at(next++); });
  for (const std::size_t slot : call->kept_slots) {
    call->kept_results.emplace_back(outputs.at(next).getIntrusivePtr());
    call->state->slots()[slot].set(outputs.at(next++));
  }
  return result;
}

}  // namespace accel::train
