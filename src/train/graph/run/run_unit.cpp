#include "train/graph/run/run_unit.hpp"

#include <ATen/core/function.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/clone.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <exception>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "train/graph/run/recompute.hpp"
#include "train/graph/run/script_body.hpp"
#include "train/graph/tensors.hpp"

namespace accel::train {
namespace {

using HooksByObject = std::unordered_map<const c10::ivalue::Object*, UnitHooks*>;

HooksByObject& hooks_by_object() {
  static HooksByObject table;
  return table;
}

/// Casts the arguments of a call. A list or dict is copied if a tensor in it is cast, so that what the call
/// puts into it would be lost.
class CastContainers {
 public:
  explicit CastContainers(const UnitHooks& hooks) : hooks_(hooks) {}

  c10::IValue cast(const c10::IValue& argument) {
    c10::IValue result = hooks_.cast_argument(argument);
    if (!argument.isTensor() && !result.is(argument)) copies_.emplace_back(result, tensors_of(result));
    return result;
  }

  void require_unchanged() const {
    for (const auto& [copy, before] : copies_) {
      if (are_same(tensors_of(copy), before)) continue;
      throw Error(ErrorKind::kUsage,
                  fmt::format("mixed precision: '{}' changes one of its arguments, a list or a dict; the "
                              "change is lost, because the argument is a copy with cast tensors",
                              hooks_.name()))
          .hint("return it instead, or wrap another module");
    }
  }

 private:
  const UnitHooks& hooks_;
  std::vector<std::pair<c10::IValue, std::vector<at::Tensor>>> copies_;
};

/// The result, with a copy of each tensor that is a parameter of the unit or a view of one.
c10::IValue without_own(const c10::IValue& result, const UnitHooks& hooks) {
  bool has_own = false;
  for_each_tensor(result, [&](const at::Tensor& tensor) { has_own = has_own || hooks.owns(tensor); });
  if (!has_own) return result;
  return map_tensors(result,
                     [&](const at::Tensor& tensor) { return hooks.owns(tensor) ? tensor.clone() : tensor; });
}

/// The mode decides, and not whether gradients are on: a layer inside a recomputed unit runs without
/// gradients first, and must run the same code again.
bool is_training(const c10::IValue& self) {
  const c10::ivalue::Object& object = self.toObjectRef();
  return object.type()->hasAttribute("training") && object.getAttr("training").toBool();
}

/// The operator. It is variadic: the interpreter puts the number of inputs on top of the stack. Arguments and
/// results may have any type.
void run_unit(torch::jit::Stack& stack) {
  const auto count = static_cast<std::size_t>(torch::jit::pop(stack).toInt());
  const std::string method = torch::jit::pop(stack).toStringRef();
  const std::size_t base = stack.size() - (count - 1);
  std::vector<c10::IValue> inputs(std::make_move_iterator(stack.begin() + static_cast<std::ptrdiff_t>(base)),
                                  std::make_move_iterator(stack.end()));
  stack.resize(base);

  const c10::IValue& self = inputs.front();
  const auto entry = hooks_by_object().find(self.toObject().get());
  UnitHooks* hooks = entry == hooks_by_object().end() ? nullptr : entry->second;
  const std::span<const c10::IValue> arguments = std::span(inputs).subspan(1);

  const c10::ClassType& type = *self.toObject()->type();
  const UnitBody* compiled = hooks != nullptr ? hooks->compiled_body() : nullptr;
  if (compiled != nullptr && !is_training(self)) compiled = nullptr;
  const UnitBody body =
      compiled != nullptr
          ? *compiled
          : script_body(type.getMethod(method), hooks == nullptr ? type.name()->name() : hooks->name());
  if (hooks == nullptr) {
    stack.push_back(body(inputs));
    return;
  }
  try {
    RECORD_USER_SCOPE("unit " + hooks->name());
    CastContainers copies(*hooks);
    for (std::size_t i = 1; i < inputs.size(); ++i) inputs[i] = copies.cast(inputs[i]);
    hooks->before_call(arguments);
    const bool recomputes = hooks->recomputes() && at::GradMode::is_enabled();
    c10::IValue result = recomputes ? call_recomputed(self, body, arguments, *hooks) : body(inputs);
    copies.require_unchanged();
    result = hooks->cast_result(without_own(result, *hooks));
    hooks->after_call(arguments, result);
    stack.push_back(std::move(result));
  } catch (const Error&) {
    hooks->failed(std::current_exception());
    throw;
  }
}

const torch::jit::RegisterOperators registration({
    torch::jit::Operator("accel::run_unit(...) -> ...", run_unit, c10::AliasAnalysisKind::CONSERVATIVE),
});

}  // namespace

UnitRegistration::UnitRegistration(HooksByObject hooks) {
  if (!hooks_by_object().empty())
    throw Error(ErrorKind::kFailure, "this process has a sharded model already");
  hooks_by_object() = std::move(hooks);
}

UnitRegistration::~UnitRegistration() { hooks_by_object().clear(); }

}  // namespace accel::train
