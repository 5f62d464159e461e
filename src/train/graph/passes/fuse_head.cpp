#include "train/graph/passes/fuse_head.hpp"

#include <fmt/format.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "train/graph/run/fused_head.hpp"

namespace accel::train {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

constexpr const char* kHeadPrefix = "_accel_fused_head_";

/// Which part of what a method returns is followed: an element of a tuple, an entry of a dict by its name, or
/// all of it.
struct OutputPart {
  std::optional<std::size_t> index;
  std::string name;
};

bool is_used_once(const Value* value) { return value->uses().size() == 1; }

/// Whether the node converts its first input to float32, in which cross_entropy computes.
bool converts_to_float(const Node* node) {
  static const auto kToCopy = c10::Symbol::fromQualString("aten::_to_copy");
  if (node->kind() != c10::aten::to && node->kind() != kToCopy) return false;
  const auto dtype = node->inputs().size() > 1 ? torch::jit::toIValue(node->input(1)) : std::nullopt;
  return dtype && dtype->isInt() && dtype->toInt() == static_cast<std::int64_t>(c10::ScalarType::Float);
}

/// The path of the module `value` from that of the method's own module, `self`. Nothing if it is not an
/// attribute.
std::optional<std::string> path_of(const Value* value, const std::string& self) {
  if (value->node()->kind() == c10::prim::Param)
    return value->offset() == 0 ? std::optional(self) : std::nullopt;
  if (value->node()->kind() != c10::prim::GetAttr) return std::nullopt;
  const auto owner = path_of(value->node()->input(), self);
  if (!owner) return std::nullopt;
  const std::string& name = value->node()->s(c10::attr::name);
  return owner->empty() ? name : *owner + "." + name;
}

/// Follows the logits back to the linear, through copies of the methods that return them.
class HeadFollower {
 public:
  /// Returns why there is no linear; empty if there is one.
  std::string follow(const c10::ClassTypePtr& type, const std::string& method, const OutputPart& part,
                     const std::string& path) {
    torch::jit::Function* function = type->findMethod(method);
    if (function == nullptr || !function->isGraphFunction()) return "its code cannot be read";
    const std::shared_ptr<Graph> graph = torch::jit::toGraphFunction(*function).graph()->copy();
    copies_.push_back({type, method, graph});
    Value* value = part_of(graph->outputs().at(0), part);
    while (value != nullptr && is_used_once(value) && converts_to_float(value->node()))
      value = value->node()->input(0);
    if (value == nullptr)
      return fmt::format("'{}' does not return it as an output of its own", text_of(path, method));
    if (!is_used_once(value))
      return fmt::format("'{}' uses its logits for something else, too", text_of(path, method));
    Node* node = value->node();
    if (node->kind() == c10::aten::linear) return replace(node, path);
    OutputPart inner;
    if (node->kind() == c10::prim::TupleUnpack && is_used_once(node->input())) {
      inner.index = value->offset();
      node = node->input()->node();
    }
    if (node->kind() != c10::prim::CallMethod)
      return fmt::format("'{}' makes it by {}", text_of(path, method), node->kind().toQualString());
    const auto callee = node->input(0)->type()->cast<c10::ClassType>();
    const auto callee_path = path_of(node->input(0), path);
    if (callee == nullptr || !callee_path)
      return fmt::format("'{}' calls a module that is not known", text_of(path, method));
    const std::string name = node->s(c10::attr::name);
    node->s_(c10::attr::name, kHeadPrefix + name);
    return follow(callee, name, inner, *callee_path);
  }

  /// Gives the copies to their classes.
  void add(const torch::jit::Module& root) const {
    for (const MethodCopy& copy : copies_) {
      const std::string name = kHeadPrefix + copy.method;
      auto* added = root._ivalue()->compilation_unit()->create_function(
          c10::QualifiedName(*copy.type->name(), name), copy.graph);
      added->setSchema(copy.type->getMethod(copy.method).getSchema().cloneWithName(name, ""));
      copy.type->addMethod(added);
    }
  }

  [[nodiscard]] const std::string& module() const { return module_; }
  [[nodiscard]] bool has_own_weight() const { return has_own_weight_; }

 private:
  struct MethodCopy {
    c10::ClassTypePtr type;
    std::string method;
    std::shared_ptr<Graph> graph;
  };

  static std::string text_of(const std::string& path, const std::string& method) {
    return path.empty() ? method : path + "." + method;
  }

  /// Null if there is no such part, or it cannot be told apart from others.
  static Value* part_of(Value* result, const OutputPart& part) {
    const Node* node = result->node();
    if (!part.index && part.name.empty())
      return result->type()->kind() == c10::TypeKind::TensorType ? result : nullptr;
    if (!is_used_once(result)) return nullptr;
    if (node->kind() == c10::prim::TupleConstruct && part.index)
      return *part.index < node->inputs().size() ? result->node()->input(*part.index) : nullptr;
    if (node->kind() != c10::prim::DictConstruct) return nullptr;
    const std::size_t entries = node->inputs().size() / 2;
    // A name counts before an index, as in output_of().
    for (std::size_t i = 0; i < entries; ++i) {
      const auto key = torch::jit::toIValue(node->input(2 * i));
      if (!key || !key->isString()) return nullptr;
      if (key->toStringRef() == part.name) return result->node()->input(2 * i + 1);
    }
    return part.index && *part.index < entries ? result->node()->input(2 * *part.index + 1) : nullptr;
  }

  std::string replace(Node* linear, const std::string& path) {
    Graph& graph = *copies_.back().graph;
    const Node* weight = linear->input(1)->node();
    has_own_weight_ = weight->kind() == c10::prim::GetAttr && weight->input() == graph.inputs().at(0) &&
                      weight->s(c10::attr::name) == "weight";
    Node* head = graph.create(c10::Symbol::fromQualString(kFusedHead), linear->inputs(), 1);
    head->output()->setType(c10::TensorType::get());
    head->setSourceRange(linear->sourceRange());
    head->insertBefore(linear);
    linear->output()->replaceAllUsesWith(head->output());
    linear->destroy();
    graph.lint();
    module_ = path;
    return "";
  }

  std::vector<MethodCopy> copies_;
  std::string module_;
  bool has_own_weight_ = false;
};

OutputPart part_named(const torch::jit::Function& forward, const std::string& output) {
  const bool is_tensor = forward.getSchema().returns().at(0).type()->kind() == c10::TypeKind::TensorType;
  if (is_tensor && output == "0") return {};
  OutputPart part;
  part.name = output;
  const bool is_number =
      !output.empty() && output.size() < 10 && output.find_first_not_of("0123456789") == std::string::npos;
  if (is_number) part.index = std::stoul(output);
  return part;
}

}  // namespace

FoundHead add_fused_forward(const torch::jit::Module& root, const std::string& output) {
  FoundHead found;
  HeadFollower follower;
  const torch::jit::Function* forward = root.type()->findMethod("forward");
  found.missing = forward == nullptr
                      ? "the model has no forward"
                      : follower.follow(root.type(), "forward", part_named(*forward, output), "");
  if (!found.is_found()) return found;
  found.module = follower.module();
  found.has_own_weight = follower.has_own_weight();
  follower.add(root);
  return found;
}

}  // namespace accel::train
