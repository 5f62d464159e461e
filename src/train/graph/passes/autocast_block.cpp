#include "train/graph/passes/autocast_block.hpp"

#include <fmt/format.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "train/graph/run/autocast.hpp"

namespace accel::train {
namespace {

constexpr const char* kEnter = "accel::enter_autocast";
constexpr const char* kExit = "accel::exit_autocast";

/// The blocks that this thread is in.
std::vector<std::unique_ptr<AutocastScope>>& open_blocks() {
  thread_local std::vector<std::unique_ptr<AutocastScope>> blocks;
  return blocks;
}

/// Inputs: the autocast object, and a type of device, or an empty text for the one that the object names.
/// Within a block no cast is kept: the parameters of a layer may be freed and gathered before the block ends.
void enter(torch::jit::Stack& stack) {
  const std::string given = torch::jit::pop(stack).toStringRef();
  const auto self = torch::jit::pop(stack).toObject();
  const std::string named = given.empty() ? self->getAttr("device").toStringRef() : given;
  open_blocks().push_back(std::make_unique<AutocastScope>(
      AutocastState{at::Device(named).type(), self->getAttr("_enabled").toBool(),
                    static_cast<at::ScalarType>(self->getAttr("fast_dtype").toInt())},
      /*caches=*/false));
}

void exit(torch::jit::Stack& /*stack*/) {
  if (!open_blocks().empty()) open_blocks().pop_back();
}

const torch::jit::RegisterOperators registration({
    torch::jit::Operator("accel::enter_autocast(Any self, str device) -> ()", enter,
                         c10::AliasAnalysisKind::CONSERVATIVE),
    torch::jit::Operator("accel::exit_autocast() -> ()", exit, c10::AliasAnalysisKind::CONSERVATIVE),
});

torch::jit::Graph& graph_of(const c10::ClassType& type, const char* method) {
  return *torch::jit::toGraphFunction(type.getMethod(method)).graph();
}

void require_attributes(const c10::ClassType& type) {
  for (const char* name : {"device", "_enabled", "fast_dtype"}) {
    if (type.hasAttribute(name)) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("the model uses torch.autocast of an unknown version: it has no '{}'", name))
        .hint("script the model with a torch of version 1.13 or later");
  }
}

}  // namespace

void obey_autocast(const std::vector<c10::ClassTypePtr>& classes, std::optional<at::Device> device) {
  for (const auto& type : std::set<c10::ClassTypePtr>(classes.begin(), classes.end())) {
    require_attributes(*type);
    torch::jit::Graph& entry = graph_of(*type, "__enter__");
    const auto is_entry = [](const torch::jit::Node* node) {
      return node->kind().toQualString() == std::string_view(kEnter);
    };
    if (std::any_of(entry.nodes().begin(), entry.nodes().end(), is_entry)) continue;
    const torch::jit::WithInsertPoint at_entry(*entry.block()->nodes().begin());
    torch::jit::Value* on =
        entry.insertConstant(device ? c10::DeviceTypeName(device->type(), /*lower_case=*/true) : "");
    entry.insertNode(entry.create(c10::Symbol::fromQualString(kEnter), {entry.inputs().at(0), on}, 0));
    torch::jit::Graph& end = graph_of(*type, "__exit__");
    const torch::jit::WithInsertPoint at_end(*end.block()->nodes().begin());
    end.insertNode(end.create(c10::Symbol::fromQualString(kExit), 0));
  }
}

}  // namespace accel::train
