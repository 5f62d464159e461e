#include "train/graph/analysis/attribute_path.hpp"

namespace accel::train {

std::optional<std::string> attribute_path(const torch::jit::Value* value) {
  const torch::jit::Node* node = value->node();
  if (node->kind() == c10::prim::Param)
    return value->offset() == 0 ? std::optional<std::string>("") : std::nullopt;
  if (node->kind() != c10::prim::GetAttr) return std::nullopt;
  const auto owner = attribute_path(node->input());
  if (!owner) return std::nullopt;
  return owner->empty() ? node->s(c10::attr::name) : *owner + "." + node->s(c10::attr::name);
}

}  // namespace accel::train
