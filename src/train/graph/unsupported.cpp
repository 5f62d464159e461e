#include "train/graph/unsupported.hpp"

#include <fmt/format.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstddef>
#include <optional>

#include "base/error.hpp"
#include "train/graph/autocast.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

std::string text_of(const std::string& module) { return module.empty() ? "(root)" : module; }

void refuse_hooks(const std::string& name, const c10::ClassTypePtr& type) {
  if (type->getForwardHooks().empty() && type->getForwardPreHooks().empty()) return;
  throw Error(ErrorKind::kUsage, fmt::format("module '{}' has a forward hook of its own", text_of(name)))
      .hint("compute in the module's forward what the hook does, or wrap another module");
}

/// Reads methods, and the functions that they call.
class Reader {
 public:
  /// `autocasts`: the function may run under autocast.
  void read(torch::jit::Function& function, const std::string& module, bool autocasts) {
    autocasts_ = autocasts;
    if (!done_.insert(&function).second || !function.isGraphFunction()) return;
    read(torch::jit::toGraphFunction(function).graph()->block(), module);
  }

 private:
  void read(Block* block, const std::string& module) {
    for (Node* node : block->nodes()) {
      for (Block* inner : node->blocks()) read(inner, module);
      if (node->kind() == c10::prim::fork) {
        throw Error(ErrorKind::kUsage,
                    fmt::format("module '{}' calls torch.jit.fork, which is not supported", text_of(module)))
            .hint("call what is forked as it is");
      }
      if (node->kind() == c10::prim::Enter) check_autocast(node, module);
      if (node->kind() == c10::prim::CallFunction)
        read(*node->input(0)->type()->expectRef<c10::FunctionType>().function(), module, autocasts_);
    }
  }

  void check_autocast(const Node* enter, const std::string& module) const {
    const auto type = enter->input(0)->type()->cast<c10::ClassType>();
    if (type == nullptr || !type->name() || type->name()->name() != "autocast") return;
    if (!autocasts_ && is_off(enter->input(0), *type)) return;
    throw Error(ErrorKind::kUsage,
                fmt::format("module '{}' uses torch.autocast, which would have no effect", text_of(module)))
        .hint("set mixed_precision in the configuration, or cast with .to() in the model");
  }

  /// Whether the object is made with enabled=False.
  static bool is_off(const Value* object, const c10::ClassType& type) {
    for (const torch::jit::Use& use : object->uses()) {
      if (use.user->kind() != c10::prim::CallMethod || use.user->s(c10::attr::name) != "__init__") continue;
      const auto& arguments = type.getMethod("__init__").getSchema().arguments();
      for (std::size_t i = 0; i < arguments.size() && i < use.user->inputs().size(); ++i) {
        if (arguments[i].name() != "enabled") continue;
        const std::optional<c10::IValue> value = torch::jit::toIValue(use.user->input(i));
        return value && value->isBool() && !value->toBool();
      }
    }
    return false;
  }

  std::unordered_set<const torch::jit::Function*> done_;  // Instances of a scripted class share its methods.
  bool autocasts_ = false;
};

}  // namespace

void refuse_unsupported(const torch::jit::Module& root, const std::unordered_set<std::string>& units,
                        bool autocasts) {
  Reader reader;
  for (const auto& module : root.named_modules()) {
    const c10::ClassTypePtr type = module.value.type();
    if (module.name.empty() || units.contains(module.name)) refuse_hooks(module.name, type);
    for (torch::jit::Function* method : type->methods()) {
      reader.read(*method, module.name, autocasts && !WithoutAutocast::wants(type->name()->name()));
    }
  }
}

}  // namespace accel::train
