#include "train/graph/run/script_body.hpp"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/runtime/jit_exception.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "train/graph/analysis/author_line.hpp"
#include "train/graph/run/run_unit.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Value;

constexpr std::string_view kFrames = "Traceback of TorchScript";
constexpr std::size_t kMostTensors = 8;

/// A place in the model that the interpreter was executing.
struct Frame {
  const Node* node = nullptr;
  std::string module;      ///< The path of the module whose method it is.
  std::string class_name;  ///< The class of that module.
};

/// The text that the interpreter prints for a node of the function `name`.
std::string text_of(const Node* node, const std::string& name) {
  std::ostringstream text;
  const torch::jit::SourceRange& range = node->sourceRange();
  range.print_with_context(text, torch::jit::SourceRange::CONTEXT, true, name);
  return text.str();
}

/// Finds the nodes that a traceback of the interpreter names. The interpreter does not give them: each node
/// is printed as the interpreter prints it, and compared.
class FrameFinder {
 public:
  /// `traceback` begins with the outermost frame.
  explicit FrameFinder(std::string_view traceback) : left_(traceback) {}

  std::vector<Frame> find(torch::jit::Function* function, c10::IValue self, std::string module) {
    std::vector<Frame> frames;
    while (function != nullptr && function->isGraphFunction()) {
      candidates_.clear();
      printed_ = 0;
      collect(torch::jit::toGraphFunction(*function).graph()->block(), function->name());
      if (candidates_.empty()) break;
      left_.remove_prefix(printed_);
      const Node* node = choose();
      frames.push_back({node, module, class_of(self)});
      function = callee_of(node, self, module);
    }
    return frames;
  }

 private:
  void collect(const Block* block, const std::string& function) {
    for (const Node* node : block->nodes()) {
      for (const Block* inner : node->blocks()) collect(inner, function);
      const std::string text = text_of(node, function);
      if (text.empty() || !left_.starts_with(text)) continue;
      printed_ = text.size();
      candidates_.push_back(node);
    }
  }

  /// Several nodes may come from one place, such as an operator and its constants.
  [[nodiscard]] const Node* choose() const {
    const auto first_of = [&](const auto& is_wanted) -> const Node* {
      const auto found = std::find_if(candidates_.begin(), candidates_.end(), is_wanted);
      return found == candidates_.end() ? nullptr : *found;
    };
    const bool has_callee = left_.starts_with("  File ");
    const Node* call = first_of([](const Node* node) {
      return node->kind() == c10::prim::CallMethod || node->kind() == c10::prim::CallFunction;
    });
    if (has_callee && call != nullptr) return call;
    const Node* op = first_of([](const Node* node) { return node->kind().ns() != c10::namespaces::prim; });
    const Node* raise = first_of([](const Node* node) { return node->kind() == c10::prim::RaiseException; });
    return op != nullptr ? op : raise != nullptr ? raise : candidates_.front();
  }

  /// The function that a call enters. `self` and `module` become those of the called module.
  static torch::jit::Function* callee_of(const Node* node, c10::IValue& self, std::string& module) {
    if (node->kind() == c10::prim::CallFunction)
      return node->input(0)->type()->expectRef<c10::FunctionType>().function();
    if (node->kind() != c10::prim::CallMethod) return nullptr;
    const auto type = node->input(0)->type()->cast<c10::ClassType>();
    if (type == nullptr) return nullptr;
    std::string path;
    if (const auto object = object_at(node->input(0), self, path)) {
      self = *object;
      if (!path.empty()) module = module == kRoot ? path : module + "." + path;
    }
    return type->findMethod(node->s(c10::attr::name));
  }

  /// The module that a chain of attributes leads to from `self`, with its path.
  static std::optional<c10::IValue> object_at(const Value* value, const c10::IValue& self,
                                              std::string& path) {
    if (value->node()->kind() == c10::prim::Param && value->offset() == 0) return self;
    if (value->node()->kind() != c10::prim::GetAttr) return std::nullopt;
    const auto owner = object_at(value->node()->input(), self, path);
    const std::string& name = value->node()->s(c10::attr::name);
    if (!owner || !owner->isObject() || !owner->toObjectRef().type()->hasAttribute(name)) return std::nullopt;
    path += (path.empty() ? "" : ".") + name;
    return owner->toObjectRef().getAttr(name);
  }

  static std::string class_of(const c10::IValue& self) {
    return self.isObject() ? self.toObjectRef().type()->name()->name() : "";
  }

  static constexpr std::string_view kRoot = "(root)";

  std::string_view left_;  ///< The part of the traceback that no frame has been found for.
  std::size_t printed_ = 0;
  std::vector<const Node*> candidates_;
};

/// The operands of the operator, which it leaves on the stack when it throws, except that an optional one may
/// be None by then. Nothing if it has taken them all.
std::optional<std::span<const c10::IValue>> operands_of(const Node* node, const Stack& stack) {
  const std::size_t count = node->inputs().size();
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (schema == nullptr || stack.size() < count || schema->arguments().size() < count) return std::nullopt;
  const auto operands = std::span<const c10::IValue>(stack).last(count);
  for (std::size_t i = 0; i < count; ++i) {
    const c10::TypeKind wanted = schema->arguments()[i].type()->kind();
    if (wanted == c10::TypeKind::OptionalType) continue;
    if (operands[i].isTensor() != (wanted == c10::TypeKind::TensorType)) return std::nullopt;
  }
  return operands;
}

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  const std::string device = tensor.device().is_cpu() ? "" : " on " + tensor.device().str();
  return fmt::format("{} [{}]{}", c10::getDtypeNames(tensor.scalar_type()).first,
                     fmt::join(tensor.sizes(), ", "), device);
}

std::string text_of_tensors(const Node* node, std::span<const c10::IValue> operands) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < operands.size() && texts.size() < kMostTensors; ++i) {
    const std::string& name = node->maybeSchema()->arguments().at(i).name();
    if (operands[i].isTensor()) texts.push_back(fmt::format("{} {}", name, text_of(operands[i].toTensor())));
    if (!operands[i].isTensorList()) continue;
    std::vector<std::string> items;
    for (const at::Tensor& tensor : operands[i].toTensorVector()) {
      if (items.size() < kMostTensors) items.push_back(text_of(tensor));
    }
    texts.push_back(fmt::format("{} ({})", name, fmt::join(items, ", ")));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// Whether each row of `indices` is 0, 1, 2 and so on.
bool counts_up(const at::Tensor& indices) {
  if (indices.dim() == 0 || indices.numel() == 0) return false;
  return at::equal(indices, at::arange(indices.size(-1), indices.options()).expand_as(indices));
}

/// Returns the Error of a lookup with an index that the table does not have.
std::optional<Error> wrong_lookup(const Frame& frame, const Node* node,
                                  std::span<const c10::IValue> operands) {
  if (node->kind() != c10::aten::embedding) return std::nullopt;
  const at::Tensor& table = operands[0].toTensor();
  const at::Tensor& indices = operands[1].toTensor();
  if (!indices.device().is_cpu() || indices.numel() == 0 || table.dim() == 0) return std::nullopt;
  const auto least = indices.min().item<std::int64_t>();
  const auto most = indices.max().item<std::int64_t>();
  const std::int64_t rows = table.size(0);
  if (least >= 0 && most < rows) return std::nullopt;
  Error error(ErrorKind::kFailure,
              fmt::format("module '{}' ({}) looks up row {} of a table of {} rows", frame.module,
                          frame.class_name, least < 0 ? least : most, rows));
  if (counts_up(indices)) {
    return std::move(error).hint(fmt::format(
        "these are the positions of a sequence: those of the data have {} tokens, and the model has {} "
        "positions",
        indices.size(-1), rows));
  }
  return std::move(error).hint(
      "if these are tokens, was the data made with another tokenizer than the model's? if they are "
      "positions, use shorter sequences");
}

/// The line of the author nearest to the failure: the innermost outside of torch, or else the innermost.
std::optional<std::string> line_of(const std::vector<Frame>& frames) {
  std::vector<torch::jit::SourceRange> ranges;
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame)
    ranges.push_back(frame->node->sourceRange());
  // The interpreter that called this method is still running. It knows from where.
  std::vector<torch::jit::StackEntry> callers = torch::jit::currentCallstack();
  for (auto caller = callers.rbegin(); caller != callers.rend(); ++caller) ranges.push_back(caller->range);
  std::optional<std::string> innermost;
  for (const torch::jit::SourceRange& range : ranges) {
    const auto line = author_line(range);
    if (line && !line->in_torch) return line->text;
    if (line && !innermost) innermost = line->text;
  }
  return innermost;
}

/// The message of an exception without the backtrace of C++.
std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

/// The reason behind the frames of a traceback, without the name of the exception in front of it.
std::string reason_in(std::string_view message, std::string_view exception) {
  const std::string start = fmt::format("\n{}: ", exception);
  const std::size_t at = message.find(start);
  std::string_view reason = at == std::string_view::npos ? message : message.substr(at + start.size());
  while (reason.ends_with('\n')) reason.remove_suffix(1);
  return std::string(reason);
}

Error explained(const std::exception& error, torch::jit::Function& method,
                const std::vector<c10::IValue>& inputs, const std::string& module, const Stack& stack) {
  const std::string message = message_of(error);
  std::string_view traceback = message;
  const std::size_t begin = traceback.find(kFrames);
  const std::size_t end = begin == std::string::npos ? begin : traceback.find('\n', begin);
  traceback.remove_prefix(end == std::string::npos ? traceback.size() : end + 1);
  const std::vector<Frame> frames = FrameFinder(traceback).find(&method, inputs.front(), module);
  const std::optional<std::string> line = line_of(frames);
  const std::string at = line ? "\n  line: " + *line : "";
  const Frame frame = frames.empty()
                          ? Frame{nullptr, module, inputs.front().toObjectRef().type()->name()->name()}
                          : frames.back();
  const std::string place = fmt::format("module '{}' ({})", frame.module, frame.class_name);

  if (const auto* raised = dynamic_cast<const torch::jit::JITException*>(&error)) {
    std::string name = raised->getPythonClassName().value_or("RuntimeError");
    std::string reason = raised->getOriginalMsg().value_or(reason_in(message, name));
    if (!line) return Error(ErrorKind::kFailure, std::move(reason));
    name = name.substr(name.rfind('.') + 1);
    return Error(ErrorKind::kFailure, fmt::format("{} raises {}: {}{}", place, name, reason, at));
  }
  std::string reason = reason_in(message, "RuntimeError");
  if (frame.node == nullptr) return Error(ErrorKind::kFailure, fmt::format("{}: {}{}", place, reason, at));
  // The call of a unit has said everything.
  if (frame.node->kind() == c10::Symbol::fromQualString(kRunUnit))
    return Error(ErrorKind::kFailure, std::move(reason));
  const auto operands = operands_of(frame.node, stack);
  if (operands) {
    if (auto lookup = wrong_lookup(frame, frame.node, *operands)) {
      return Error(lookup->kind(), lookup->message() + at).hint(lookup->advice());
    }
  }
  const std::string tensors = operands ? text_of_tensors(frame.node, *operands) : "";
  return Error(ErrorKind::kFailure, fmt::format("{}, {}: {}{}{}", place, frame.node->kind().toQualString(),
                                                reason, tensors.empty() ? "" : "\n  inputs: " + tensors, at));
}

}  // namespace

UnitBody script_body(torch::jit::Function& method, std::string module) {
  return [&method, module = std::move(module)](const std::vector<c10::IValue>& inputs) {
    Stack stack(inputs.begin(), inputs.end());
    try {
      method.run(stack);
    } catch (const std::exception& error) {
      throw explained(error, method, inputs, module, stack);
    }
    return std::move(stack.back());
  };
}

}  // namespace accel::train
