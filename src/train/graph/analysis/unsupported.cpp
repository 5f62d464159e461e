#include "train/graph/analysis/unsupported.hpp"

#include <fmt/format.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "structure/structure.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

/// Whether objects of the class are those of `with torch.autocast(...)` in TorchScript.
bool is_autocast(const c10::ClassType& type) { return type.name() && type.name()->name() == "autocast"; }

void refuse_hooks(const std::string& name, const c10::ClassTypePtr& type) {
  if (type->getForwardHooks().empty() && type->getForwardPreHooks().empty()) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("module '{}' has a forward hook of its own", text_of_module(name)))
      .hint("compute in the module's forward what the hook does, or wrap another module");
}

[[noreturn]] void refuse_max_norm(const std::string& module, const char* what) {
  throw Error(ErrorKind::kUsage, fmt::format("module '{}' {}", module, what))
      .hint("export the model with max_norm=None, or scale the rows that are looked up in its forward");
}

/// Reads all code that the model's forward calls.
class Reader {
 public:
  explicit Reader(const torch::jit::Module& root) {
    for (const auto& module : root.named_modules()) names_.emplace(module.value.type().get(), module.name);
  }

  /// A method of `type`, or a function that it calls.
  void read(torch::jit::Function& function, const c10::ClassType& type) {
    if (!done_.insert({&function, &type}).second || !function.isGraphFunction()) return;
    read(torch::jit::toGraphFunction(function).graph()->block(), type);
  }

  /// The classes of autocast blocks in the code that was read; one may come several times.
  [[nodiscard]] const std::vector<c10::ClassTypePtr>& autocast_classes() const { return autocast_classes_; }

 private:
  void read(Block* block, const c10::ClassType& type) {
    for (Node* node : block->nodes()) {
      for (Block* inner : node->blocks()) read(inner, type);
      if (node->kind() == c10::prim::fork) {
        throw Error(ErrorKind::kUsage,
                    fmt::format("module '{}' calls torch.jit.fork, which is not supported", name_of(type)))
            .hint("call the function directly");
      }
      if (node->kind() == c10::prim::Enter) {
        const auto entered = node->input(0)->type()->cast<c10::ClassType>();
        if (entered != nullptr && is_autocast(*entered)) autocast_classes_.push_back(entered);
      }
      if (node->kind() == c10::Symbol::aten("embedding_renorm_")) {
        refuse_max_norm(name_of(type),
                        "looks up rows with max_norm, which changes rows of the table in place");
      }
      if (node->kind() == c10::prim::CallFunction) {
        torch::jit::Function& function = *node->input(0)->type()->expectRef<c10::FunctionType>().function();
        check_lookup(node, function, type);
        read(function, type);
      }
      if (node->kind() == c10::prim::CallMethod) {
        if (const auto called = node->input(0)->type()->cast<c10::ClassType>())
          read(called->getMethod(node->s(c10::attr::name)), *called);
      }
    }
  }

  /// The path of the first module of that class.
  [[nodiscard]] std::string name_of(const c10::ClassType& type) const {
    const auto found = names_.find(&type);
    return found == names_.end() ? type.name()->name() : text_of_module(found->second);
  }

  /// Checks calls of torch.nn.functional's embedding and embedding_bag.
  void check_lookup(const Node* call, const torch::jit::Function& function,
                    const c10::ClassType& module) const {
    // Behind the folder there may be a name that tells apart several functions of one name.
    const std::string name = function.qualname().qualifiedName();
    if (name.find("torch.nn.functional.") == std::string::npos ||
        !(name.ends_with(".embedding") || name.ends_with(".embedding_bag")))
      return;
    const auto& arguments = function.getSchema().arguments();
    for (std::size_t i = 0; i < arguments.size() && i + 1 < call->inputs().size(); ++i) {
      if (arguments[i].name() != "max_norm") continue;
      const std::optional<c10::IValue> value = torch::jit::toIValue(call->input(i + 1));
      if (!value || value->isNone()) continue;
      refuse_max_norm(
          name_of(module),
          "looks up rows with max_norm, whose renormalization of the table TorchScript leaves out");
    }
  }

  std::unordered_map<const c10::ClassType*, std::string> names_;
  std::set<std::pair<const torch::jit::Function*, const c10::ClassType*>> done_;
  std::vector<c10::ClassTypePtr> autocast_classes_;
};

}  // namespace

std::vector<c10::ClassTypePtr> refuse_unsupported(const torch::jit::Module& root,
                                                  const std::unordered_set<std::string>& units) {
  for (const auto& module : root.named_modules()) {
    if (module.name.empty() || units.contains(module.name)) refuse_hooks(module.name, module.value.type());
  }
  torch::jit::Function* forward = root.type()->findMethod("forward");
  if (forward == nullptr) {
    throw Error(ErrorKind::kUsage, "the model has no method 'forward'")
        .hint("export a module whose forward takes a batch and returns the loss, or logits");
  }
  Reader reader(root);
  reader.read(*forward, *root.type());
  return reader.autocast_classes();
}

}  // namespace accel::train
