#include "train/graph/run/compiled_body.hpp"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "train/graph/run/autocast.hpp"

namespace accel::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A layer whose code runs. It is the same for all calls.
struct Bound {
  std::shared_ptr<const CompiledCode> code;
  std::string module;
  /// For each tensor that the code takes: the names of the attributes that lead to it from the module, or the
  /// place of the argument.
  std::vector<std::variant<std::vector<std::string>, std::size_t>> sources;

  [[nodiscard]] const CompiledPackage& package() const { return code->description(); }
  [[nodiscard]] bool is_own(std::size_t place) const { return sources[place].index() == 0; }
};

at::Tensor own_tensor(const c10::IValue& self, const std::vector<std::string>& path) {
  c10::IValue value = self;
  for (const std::string& name : path) value = value.toObjectRef().getAttr(name);
  return value.toTensor();
}

[[noreturn]] void refuse(const Bound& bound, const std::string& what) {
  throw Error(ErrorKind::kUsage, fmt::format("the compiled code of '{}' {}", bound.module, what))
      .hint("export the model again with --compile for this training, or set dynamo_backend: NO");
}

std::string name_of(const Bound& bound, std::size_t place) {
  const CompiledTensor& tensor = bound.package().takes[place];
  return tensor.own.empty() ? fmt::format("input {}", tensor.input) : fmt::format("'{}'", tensor.own);
}

/// Whether a size has a name, and is not computed from others.
bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  });
}

/// The sizes that vary, as the tensors of one call have them.
class Sizes {
 public:
  bool agrees(const std::variant<std::int64_t, std::string>& expected, std::int64_t found) {
    if (const auto* fixed = std::get_if<std::int64_t>(&expected)) return *fixed == found;
    const std::string& name = std::get<std::string>(expected);
    if (!is_name(name)) return true;
    for (const auto& [known, size] : known_) {
      if (known == name) return size == found;
    }
    known_.emplace_back(name, found);
    return true;
  }

 private:
  std::vector<std::pair<std::string_view, std::int64_t>> known_;
};

std::string text_of(const std::string& dtype, const CompiledShape& shape) {
  std::vector<std::string> sizes;
  for (const auto& size : shape) {
    const auto* fixed = std::get_if<std::int64_t>(&size);
    sizes.push_back(fixed != nullptr ? std::to_string(*fixed) : std::get<std::string>(size));
  }
  return fmt::format("{} [{}]", dtype, fmt::join(sizes, ", "));
}

std::string text_of(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::getDtypeNames(tensor.scalar_type()).first,
                     fmt::join(tensor.sizes(), ", "));
}

bool fits(const std::string& dtype, const CompiledShape& shape, const at::Tensor& tensor, Sizes& sizes) {
  bool fits = dtype == c10::getDtypeNames(tensor.scalar_type()).first && tensor.device().is_cpu() &&
              static_cast<std::size_t>(tensor.dim()) == shape.size();
  for (std::size_t dim = 0; fits && dim < shape.size(); ++dim)
    fits = sizes.agrees(shape[dim], tensor.size(static_cast<std::int64_t>(dim)));
  return fits;
}

void require_fit(const Bound& bound, std::size_t place, const at::Tensor& tensor, Sizes& sizes) {
  const CompiledTensor& expected = bound.package().takes[place];
  if (!fits(expected.dtype, expected.shape, tensor, sizes)) {
    refuse(bound, fmt::format("takes {} as {}, and got {}", name_of(bound, place),
                              text_of(expected.dtype, expected.shape), text_of(tensor)));
  }
  if (tensor.requires_grad() && !expected.gradient)
    refuse(bound, fmt::format("gives no gradient of {}, which the training needs", name_of(bound, place)));
}

/// Throws unless backward takes the gradients of `outputs` as autograd gives them: with their dtypes and
/// sizes. Returns the outputs that have none.
variable_list without_gradients(const Bound& bound, const variable_list& outputs, Sizes& sizes) {
  std::vector<bool> has_gradient(outputs.size());
  for (const OutputGradient& gradient : bound.package().output_gradients) {
    const at::Tensor& output = outputs.at(gradient.output);
    if (!fits(gradient.dtype, gradient.shape, output, sizes)) {
      refuse(bound, fmt::format("takes the gradient of output {} as {}, and the output is {}",
                                gradient.output, text_of(gradient.dtype, gradient.shape), text_of(output)));
    }
    has_gradient[gradient.output] = true;
  }
  variable_list others;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!has_gradient[i]) others.push_back(outputs[i]);
  }
  return others;
}

/// `tensor` with its memory in the order of `dims`, the widest first; itself if it has that.
at::Tensor in_order(const at::Tensor& tensor, const std::vector<std::size_t>& dims) {
  std::vector<std::int64_t> order(dims.begin(), dims.end());
  std::vector<std::int64_t> inverse(order.size());
  for (std::size_t d = 0; d < order.size(); ++d)
    inverse[static_cast<std::size_t>(order[d])] = static_cast<std::int64_t>(d);
  return tensor.permute(order).contiguous().permute(inverse);
}

/// One call of a layer.
struct Call final : torch::CustomClassHolder {
  std::shared_ptr<const Bound> bound;
  c10::IValue self;
};

constexpr const char* kCall = "call";

/// The code has its casts in it.
template <class Run>
std::vector<at::Tensor> run_named(const Bound& bound, const char* what, const Run& run) {
  AutocastState state = AutocastState::now(at::kCPU);
  state.enabled = false;
  const AutocastScope without(state);
  try {
    return run();
  } catch (const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    const std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
    throw Error(ErrorKind::kFailure, fmt::format("the compiled {} of '{}' fails: {}", what, bound.module,
                                                 text.substr(0, text.find('\n'))))
        .hint("dynamo_backend: NO runs the model's operators one by one, and names the one that fails");
  }
}

class Compiled final : public torch::autograd::Function<Compiled> {
 public:
  /// `taken` are what the code takes, in order.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<Call>& call,
                               at::TensorList taken) {
    const Bound& bound = *call->bound;
    const CompiledPackage& package = bound.package();
    Sizes sizes;
    std::vector<at::Tensor> inputs;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      require_fit(bound, i, taken[i], sizes);
      inputs.push_back(taken[i].detach().contiguous());
    }
    const std::vector<at::Tensor> results =
        run_named(bound, "forward", [&] { return bound.code->forward(inputs); });
    variable_list outputs(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(package.outputs));
    variable_list saved;
    for (const BackwardInput& input : package.backward_takes) {
      if (input.kind == BackwardInput::Kind::kResult) saved.push_back(results.at(input.index));
      if (input.kind == BackwardInput::Kind::kTaken && !bound.is_own(input.index))
        saved.push_back(inputs[input.index]);
    }
    context->save_for_backward(std::move(saved));
    context->saved_data[kCall] = c10::IValue::make_capsule(call);
    context->mark_non_differentiable(without_gradients(bound, outputs, sizes));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto target = context->saved_data.at(kCall).toCapsule();
    const Call& call = static_cast<const Call&>(*target);
    const Bound& bound = *call.bound;
    const CompiledPackage& package = bound.package();
    const variable_list saved = context->get_saved_variables();
    std::vector<at::Tensor> inputs;
    std::size_t next = 0;
    for (const BackwardInput& input : package.backward_takes) {
      if (input.kind == BackwardInput::Kind::kGradient) {
        const OutputGradient& gradient = package.output_gradients[input.index];
        inputs.push_back(in_order(gradients.at(gradient.output), gradient.order));
      } else if (input.kind == BackwardInput::Kind::kTaken && bound.is_own(input.index)) {
        const auto& path = std::get<std::vector<std::string>>(bound.sources[input.index]);
        inputs.push_back(own_tensor(call.self, path).detach().contiguous());
      } else {
        inputs.push_back(saved.at(next++));
      }
    }
    std::vector<at::Tensor> made =
        run_named(bound, "backward", [&] { return bound.code->backward(std::move(inputs)); });
    variable_list result(package.takes.size() + 1);  // The call gets no gradient.
    for (std::size_t i = 0; i < package.gradients.size(); ++i)
      result[package.gradients[i] + 1] = std::move(made.at(i));
    return result;
  }
};

c10::IValue run(const std::shared_ptr<const Bound>& bound, const std::vector<c10::IValue>& inputs) {
  auto call = c10::make_intrusive<Call>();
  call->bound = bound;
  call->self = inputs.front();
  std::vector<at::Tensor> taken;
  for (const auto& source : bound->sources) {
    const auto* path = std::get_if<std::vector<std::string>>(&source);
    taken.push_back(path != nullptr ? own_tensor(call->self, *path)
                                    : inputs.at(std::get<std::size_t>(source)).toTensor());
  }
  variable_list outputs = Compiled::apply(call, at::TensorList(taken));
  if (outputs.size() == 1) return std::move(outputs.front());
  std::vector<c10::IValue> values(std::make_move_iterator(outputs.begin()),
                                  std::make_move_iterator(outputs.end()));
  return c10::ivalue::Tuple::create(std::move(values));
}

/// The places of the arguments that are tensors, in the order of the layer's inputs.
std::vector<std::size_t> places_of(const CompiledLayer& layer, const c10::FunctionSchema& forward,
                                   const Bound& bound) {
  std::vector<std::optional<std::size_t>> places(layer.inputs.size());
  for (std::size_t i = 1; i < forward.arguments().size(); ++i) {
    const c10::Argument& argument = forward.arguments()[i];
    if (argument.type()->kind() != c10::TypeKind::TensorType) continue;
    const auto found = std::find(layer.inputs.begin(), layer.inputs.end(), argument.name());
    if (found == layer.inputs.end())
      refuse(bound, fmt::format("has no input '{}', which the layer takes", argument.name()));
    places[static_cast<std::size_t>(found - layer.inputs.begin())] = i;
  }
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!places[i]) refuse(bound, fmt::format("takes '{}', which the layer does not", layer.inputs[i]));
    found.push_back(*places[i]);
  }
  return found;
}

void require_results(const c10::FunctionSchema& forward, const Bound& bound) {
  const std::size_t expected = bound.package().outputs;
  const c10::TypePtr type = forward.returns().empty() ? nullptr : forward.returns().front().type();
  const auto* tuple = type == nullptr ? nullptr : type->castRaw<c10::TupleType>();
  const bool one = type != nullptr && type->kind() == c10::TypeKind::TensorType && expected == 1;
  const bool several =
      tuple != nullptr && expected > 1 && tuple->elements().size() == expected &&
      std::all_of(tuple->elements().begin(), tuple->elements().end(),
                  [](const c10::TypePtr& t) { return t->kind() == c10::TypeKind::TensorType; });
  if (!one && !several)
    refuse(bound, fmt::format("gives {} tensors, and the layer gives other values", expected));
}

}  // namespace

UnitBody compiled_body(std::shared_ptr<const CompiledCode> code, const CompiledLayer& layer,
                       const c10::FunctionSchema& forward, std::string module) {
  auto bound = std::make_shared<Bound>();
  bound->code = std::move(code);
  bound->module = std::move(module);
  const std::vector<std::size_t> places = places_of(layer, forward, *bound);
  require_results(forward, *bound);
  for (const CompiledTensor& tensor : bound->package().takes) {
    if (tensor.own.empty()) {
      bound->sources.emplace_back(places.at(tensor.input));
    } else {
      bound->sources.emplace_back(split(tensor.own, '.'));
    }
  }
  return [bound = std::shared_ptr<const Bound>(std::move(bound))](const std::vector<c10::IValue>& inputs) {
    return run(bound, inputs);
  };
}

}  // namespace accel::train
