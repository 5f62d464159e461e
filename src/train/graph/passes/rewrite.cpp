#include "train/graph/passes/rewrite.hpp"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <string_view>
#include <vector>

#include "train/graph/run/run_unit.hpp"

namespace accel::train {
namespace {

constexpr std::string_view kPrefix = "__accel_";

void outline(const torch::jit::Module& module, const std::string& name) {
  const c10::ClassTypePtr type = module.type();
  torch::jit::Function& method = type->getMethod(name);
  const auto graph = torch::jit::toGraphFunction(method).graph();
  const std::string inner_name = std::string(kPrefix) + name;

  auto* inner = module._ivalue()->compilation_unit()->create_function(
      c10::QualifiedName(*type->name(), inner_name), graph->copy());
  inner->setSchema(method.getSchema().cloneWithName(inner_name, ""));
  type->addMethod(inner);

  std::vector<torch::jit::Value*> inputs = graph->inputs().vec();
  {
    const torch::jit::WithInsertPoint at_end(graph->return_node());
    inputs.push_back(graph->insertConstant(inner_name));
  }
  torch::jit::Node* call = graph->create(c10::Symbol::fromQualString(kRunUnit), inputs, 1);
  call->output()->setType(graph->outputs().at(0)->type());
  graph->appendNode(call);
  graph->return_node()->replaceInput(0, call->output());

  // The old body is everything but the two new nodes. Nodes are destroyed before the nodes that they use.
  std::vector<torch::jit::Node*> old_body;
  for (torch::jit::Node* node : graph->nodes()) {
    if (node != call && node != inputs.back()->node()) old_body.push_back(node);
  }
  for (auto node = old_body.rbegin(); node != old_body.rend(); ++node) (*node)->destroy();
  graph->lint();
}

}  // namespace

void rewrite_methods(const torch::jit::Module& module) {
  std::vector<std::string> names;
  for (const torch::jit::Function* method : module.type()->methods()) {
    if (method->name().starts_with(kPrefix)) return;
    names.push_back(method->name());
  }
  for (const std::string& name : names) outline(module, name);
}

}  // namespace accel::train
