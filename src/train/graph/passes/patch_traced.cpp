#include "train/graph/passes/patch_traced.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "train/graph/analysis/author_line.hpp"
#include "train/graph/tensors.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

/// Whether the devices are the same. There is one CPU, with or without an index.
bool is_same(at::Device a, at::Device b) { return a == b || (a.is_cpu() && b.is_cpu()); }

/// Whether `value`, a tensor of one number, is used only in arithmetic on numbers of the host, as tracing
/// writes the computation of sizes. On another device the host would wait for each result.
bool is_host_number(const Value* value) {
  static constexpr std::array kToNumber = {c10::aten::Int,           c10::aten::Float,
                                           c10::aten::Bool,          c10::aten::IntImplicit,
                                           c10::aten::FloatImplicit, c10::aten::ScalarImplicit};
  static constexpr std::array kArithmetic = {c10::aten::add,          c10::aten::sub,       c10::aten::mul,
                                             c10::aten::div,          c10::aten::remainder, c10::aten::neg,
                                             c10::aten::floor_divide, c10::aten::floor,     c10::aten::ceil};
  const auto is_in = [](const auto& kinds, c10::Symbol kind) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  };
  return std::all_of(value->uses().begin(), value->uses().end(), [&](const torch::jit::Use& use) {
    if (is_in(kToNumber, use.user->kind())) return true;
    return is_in(kArithmetic, use.user->kind()) && is_host_number(use.user->output());
  });
}

/// Moves constant tensors to the device of the model. A tensor that several graphs share is moved once.
class MovedConstants {
 public:
  explicit MovedConstants(at::Device device) : device_(device) {}

  [[nodiscard]] bool has_all(const c10::IValue& value) const {
    bool all = true;
    for_each_tensor(value, [&](const at::Tensor& tensor) { all = all && is_same(tensor.device(), device_); });
    return all;
  }

  at::Tensor moved(const at::Tensor& tensor) {
    if (is_same(tensor.device(), device_)) return tensor;
    const at::NoGradGuard no_grad;
    auto& [original, copy] = moved_[tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) {
      original = tensor;  // It is kept alive, so that no other tensor gets its address.
      copy = tensor.to(device_);
    }
    return copy;
  }

 private:
  at::Device device_;
  std::unordered_map<const at::TensorImpl*, std::pair<at::Tensor, at::Tensor>> moved_;
};

bool reads_training(Block* block) {
  for (Node* node : block->nodes()) {
    if (node->kind() == c10::prim::GetAttr && node->s(c10::attr::name) == "training") return true;
    for (Block* inner : node->blocks()) {
      if (reads_training(inner)) return true;
    }
  }
  return false;
}

/// Whether the class is one of torch.nn that reads its flag `training` when it is scripted.
bool has_modes(const c10::ClassType& type) {
  static constexpr std::array kNames = {"torch.nn.modules.dropout.", "torch.nn.modules.batchnorm.",
                                        "torch.nn.modules.instancenorm.", "torch.nn.modules.rnn."};
  const std::string name = type.name()->qualifiedName();
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](const char* part) { return name.find(part) != std::string::npos; });
}

/// Finds the classes that are scripted: those that read their flag, which traced code never does, and those
/// of several modules, because tracing makes a class for each module. But a traced module may have been
/// copied.
class Scripted {
 public:
  explicit Scripted(const torch::jit::Module& root) {
    std::unordered_set<const c10::ivalue::Object*> objects;
    std::unordered_map<const c10::ClassType*, int> instances;
    for (const auto& module : root.named_modules()) {
      const c10::ClassType* type = module.value.type().get();
      if (!objects.insert(module.value._ivalue().get()).second) continue;
      if (++instances[type] == 2) shared_.insert(type);
      for (torch::jit::Function* method : type->methods()) {
        if (reads_training(torch::jit::toGraphFunction(*method).graph()->block())) reading_.insert(type);
      }
    }
  }

  [[nodiscard]] bool contains(const torch::jit::Module& module) const {
    if (reading_.contains(module.type().get())) return true;
    if (!shared_.contains(module.type().get())) return false;
    for (const torch::jit::Module& inside : module.modules()) {
      if (has_modes(*inside.type()) && !reading_.contains(inside.type().get())) return false;
    }
    return true;
  }

 private:
  std::unordered_set<const c10::ClassType*> reading_;
  std::unordered_set<const c10::ClassType*> shared_;
};

/// The argument `name` of a node, or null.
const Value* argument_of(const Node* node, std::string_view name) {
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (schema == nullptr) return nullptr;
  for (std::size_t i = 0; i < schema->arguments().size() && i < node->inputs().size(); ++i) {
    if (schema->arguments()[i].name() == name) return node->input(i);
  }
  return nullptr;
}

enum class Origin { kScripted, kTraced, kUnknown };

/// How a module's code was made. The importer of torch.export's programs has written the flags already.
/// kInEvaluation is the code of a module that was traced in evaluation mode within a model in training mode.
enum class Code { kScripted, kTraced, kInEvaluation, kExported };

/// Whether tracing or an author wrote a node that makes or moves a tensor. Tracing always records the
/// argument `pin_memory` of operators that make tensors and `layout` of operators that move them; authors
/// rarely give either. Tracing records the result of torch.tensor() as a constant, and it records no
/// branches.
Origin origin_of(const Node* node) {
  if (node->kind() == c10::aten::tensor || node->kind() == c10::aten::as_tensor ||
      node->kind() == c10::prim::If || node->kind() == c10::prim::Loop) {
    return Origin::kScripted;
  }
  const Value* pins = argument_of(node, "pin_memory");
  const Value* layout = argument_of(node, "layout");
  if (pins == nullptr || layout == nullptr) return Origin::kUnknown;
  return pins->mustBeNone() && layout->mustBeNone() ? Origin::kScripted : Origin::kTraced;
}

/// The origin of a whole graph: one traced node makes it traced.
Origin origin_of(const Block* block) {
  Origin found = Origin::kUnknown;
  for (const Node* node : block->nodes()) {
    const Origin own = origin_of(node);
    if (own == Origin::kTraced) return own;
    if (own == Origin::kScripted) found = own;
    for (const Block* inner : node->blocks()) {
      const Origin within = origin_of(inner);
      if (within == Origin::kTraced) return within;
      if (within == Origin::kScripted) found = within;
    }
  }
  return found;
}

/// Patches one graph of a method of `module`.
class Patcher {
 public:
  Patcher(Graph& graph, const torch::jit::Module& module, Code code, at::Device device,
          MovedConstants& constants)
      : graph_(graph),
        device_(device),
        constants_(constants),
        code_(code),
        keeps_cpu_(code == Code::kScripted || origin_of(graph.block()) == Origin::kScripted),
        has_flag_(code == Code::kTraced && module.hasattr("training")),
        counts_batches_(module.hasattr("num_batches_tracked") &&
                        module.attr("num_batches_tracked").isTensor()) {
    if (has_flag_) training_ = module.is_training();
  }

  void patch(Block* block) {
    const std::vector<Node*> nodes(block->nodes().begin(), block->nodes().end());
    for (Node* node : nodes) {
      for (Block* inner : node->blocks()) patch(inner);
      if (node->kind() == c10::prim::Constant) {
        patch_device(node);
        patch_tensor(node);
      }
      if (!has_flag_ || node->kind().ns() != c10::namespaces::aten) continue;
      patch_training(node);
      if (node->kind() == c10::aten::batch_norm && !lacks_statistics(node)) patch_count(node);
      if (node->kind() == c10::aten::scaled_dot_product_attention) patch_attention(node);
    }
  }

 private:
  void patch_device(Node* node) const {
    if (node->output()->type()->kind() != c10::TypeKind::DeviceObjType) return;
    const std::optional<c10::IValue> value = torch::jit::toIValue(node->output());
    if (!value || !value->isDevice() || is_same(value->toDevice(), device_)) return;
    if (value->toDevice().is_cpu() && is_meant(node->output())) return;
    node->s_(c10::attr::value, device_.str());
  }

  /// Whether the author of a scripted model wrote a constant device.
  [[nodiscard]] bool is_meant(const Value* constant) const {
    if (code_ == Code::kExported) return false;
    return std::all_of(constant->uses().begin(), constant->uses().end(), [&](const torch::jit::Use& use) {
      const Origin origin = origin_of(use.user);
      return origin == Origin::kScripted || (origin == Origin::kUnknown && keeps_cpu_);
    });
  }

  void patch_tensor(Node* node) {
    const std::optional<c10::IValue> value = torch::jit::toIValue(node->output());
    if (!value || constants_.has_all(*value)) return;
    if (value->isTensor()) {
      if (value->toTensor().dim() == 0 && is_host_number(node->output())) return;
      node->t_(c10::attr::value, constants_.moved(value->toTensor()));
    } else {
      node->ival_(c10::attr::value,
                  map_tensors(*value, [&](const at::Tensor& tensor) { return constants_.moved(tensor); }));
    }
  }

  void patch_training(Node* node) {
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (schema == nullptr) return;
    for (std::size_t i = 0; i < schema->arguments().size() && i < node->inputs().size(); ++i) {
      const std::string& name = schema->arguments()[i].name();
      if (name != "train" && name != "training" && name != "use_input_stats") continue;
      const std::optional<c10::IValue> value = torch::jit::toIValue(node->input(i));
      if (!value || !value->isBool() || value->toBool() != training_ || lacks_statistics(node)) continue;
      if (is_written(node)) continue;
      const torch::jit::WithInsertPoint before(node);
      node->replaceInput(i, flag());
    }
  }

  /// Whether the file says that an author wrote the node. Its constants are meant, even in a class that does
  /// not read its flag.
  static bool is_written(const Node* node) {
    return is_of_trace(node->sourceRange()) == std::optional(false);
  }

  /// Without running statistics a norm uses those of the batch, in evaluation, too.
  static bool lacks_statistics(Node* node) {
    const bool is_norm = node->kind() == c10::aten::batch_norm || node->kind() == c10::aten::instance_norm;
    return is_norm && node->input(3)->mustBeNone();
  }

  /// A batch norm counts the batches of training: `num_batches_tracked.add_(1)`. A trace has that for both
  /// modes or for none.
  void patch_count(Node* norm) {
    if (!counts_batches_) return;
    const auto counts = [](const torch::jit::Use& use) {
      return use.user->kind() == c10::aten::add_ && use.offset == 0;
    };
    const auto is_count = [](const Node* node) {
      return node->kind() == c10::prim::GetAttr && node->s(c10::attr::name) == "num_batches_tracked";
    };
    bool found = false;
    for (Node* node : norm->owningBlock()->nodes()) {
      if (!is_count(node)) continue;
      for (const torch::jit::Use& use : node->output()->uses()) {
        if (!counts(use)) continue;
        found = true;
        const torch::jit::WithInsertPoint before(use.user);
        use.user->replaceInput(2, graph_.insert(c10::aten::Int, {flag()}));
      }
    }
    if (found) return;
    const torch::jit::WithInsertPoint before(norm);
    Value* count = graph_.insertGetAttr(graph_.inputs().at(0), "num_batches_tracked");
    Value* as_number = graph_.insert(c10::aten::Int, {flag()});
    graph_.insert(c10::aten::add_, {count, as_number});
  }

  void patch_attention(Node* node) {
    constexpr std::size_t kDropout = 4;
    const std::optional<c10::IValue> p = torch::jit::toIValue(node->input(kDropout));
    if (!training_ || !p || !p->isDouble() || p->toDouble() == 0 || is_written(node)) return;
    const torch::jit::WithInsertPoint before(node);
    Value* as_number = graph_.insert(c10::aten::Float, {flag()});
    node->replaceInput(kDropout, graph_.insert(c10::aten::mul, {node->input(kDropout), as_number}));
  }

  Value* flag() {
    return graph_.insertGetAttr(graph_.inputs().at(0), "training")->setType(c10::BoolType::get());
  }

  Graph& graph_;
  at::Device device_;
  MovedConstants& constants_;
  Code code_;
  bool keeps_cpu_;
  bool has_flag_;
  bool counts_batches_;
  bool training_ = false;
};

}  // namespace

void patch_traced(const torch::jit::Module& root, at::Device device) {
  MovedConstants constants(device);
  std::unordered_set<const torch::jit::Function*> done;  // Instances of a scripted class share its methods.
  const Scripted scripted(root);
  // A wrapper or a loss that nobody has put into a mode is in training mode, too. The parts with modes tell.
  bool trains = false;
  for (const auto& module : root.named_modules())
    trains |=
        has_modes(*module.value.type()) && module.value.hasattr("training") && module.value.is_training();
  trains &= root.hasattr("training") && root.is_training();
  for (const auto& module : root.named_modules()) {
    const bool stays = trains && module.value.hasattr("training") && !module.value.is_training();
    const Code code = scripted.contains(module.value) ? Code::kScripted
                      : stays                         ? Code::kInEvaluation
                                                      : Code::kTraced;
    for (torch::jit::Function* method : module.value.type()->methods()) {
      if (!done.insert(method).second) continue;
      Graph& graph = *torch::jit::toGraphFunction(*method).graph();
      Patcher(graph, module.value, code, device, constants).patch(graph.block());
    }
  }
}

void patch_exported(const torch::jit::Module& root, at::Device device) {
  MovedConstants constants(device);
  for (const auto& module : root.named_modules()) {
    for (torch::jit::Function* method : module.value.type()->methods()) {
      Graph& graph = *torch::jit::toGraphFunction(*method).graph();
      Patcher(graph, module.value, Code::kExported, device, constants).patch(graph.block());
    }
  }
}

}  // namespace accel::train
