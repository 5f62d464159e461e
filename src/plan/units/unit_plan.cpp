#include "plan/units/unit_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "plan/units/embedding_and_head_units.hpp"
#include "plan/units/wrap_policy.hpp"

namespace accel {
namespace {

/// Modules in post-order. In pre-order a module is complete when the next one is not inside it.
std::vector<ModuleInfo> post_order(const std::vector<ModuleInfo>& pre_order) {
  std::vector<ModuleInfo> result;
  std::vector<ModuleInfo> open;
  for (const ModuleInfo& module : pre_order) {
    if (module.name.empty()) continue;
    while (!open.empty() && !is_inside(module.name, open.back().name)) {
      result.push_back(std::move(open.back()));
      open.pop_back();
    }
    open.push_back(module);
  }
  for (; !open.empty(); open.pop_back()) result.push_back(std::move(open.back()));
  return result;
}

/// The innermost module around `fqn`: the longest path in `units` that is a prefix of it; empty for the root.
std::string innermost(const std::string& fqn, const std::set<std::string>& units) {
  std::string name = fqn;
  for (std::size_t dot = name.rfind('.'); dot != std::string::npos; dot = name.rfind('.')) {
    name.resize(dot);
    if (units.contains(name)) return name;
  }
  return {};
}

}  // namespace

std::unordered_set<std::string> unit_modules(const ModelStructure& model, const config::FsdpConfig& config) {
  const auto wrapped = wrapped_modules(model, config);
  const EmbeddingAndHeadUnits ends = embedding_and_head_units(model, config, wrapped);
  std::unordered_set<std::string> modules(wrapped.begin(), wrapped.end());
  modules.insert(ends.embeddings.begin(), ends.embeddings.end());
  modules.insert(ends.heads.begin(), ends.heads.end());
  return modules;
}

std::vector<UnitPlan> plan_units(const ModelStructure& model, const config::FsdpConfig& config) {
  const auto wrapped = wrapped_modules(model, config);
  const EmbeddingAndHeadUnits ends = embedding_and_head_units(model, config, wrapped);
  std::set<std::string> names(wrapped.begin(), wrapped.end());
  const std::set<std::string> layers = names;
  names.insert(ends.embeddings.begin(), ends.embeddings.end());
  names.insert(ends.heads.begin(), ends.heads.end());
  const std::set<std::string> heads(ends.heads.begin(), ends.heads.end());

  std::vector<UnitPlan> units;
  for (ModuleInfo& module : post_order(model.modules)) {
    if (!names.contains(module.name)) continue;
    const bool is_head = heads.contains(module.name);
    const bool is_layer = layers.contains(module.name);
    units.push_back({std::move(module.name), std::move(module.class_name), {}, is_head, is_layer});
  }
  units.push_back({"", model.modules.empty() ? "" : model.modules.front().class_name, {}, true, false});

  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < units.size(); ++i) index[units[i].module] = i;
  bool trainable = false;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const ParameterInfo& parameter = model.parameters[i];
    trainable |= parameter.requires_grad;
    std::string owner = innermost(parameter.fqns.front(), names);
    for (const std::string& fqn : parameter.fqns) {
      if (parameter.cross_unit || innermost(fqn, names) != owner) owner.clear();
    }
    units[index.at(owner)].parameters.push_back(i);
  }
  if (!trainable)
    throw Error(ErrorKind::kUsage, "no parameter of the model requires grad, so there is nothing to train");
  return units;
}

void require_no_unit_inside(const std::set<std::string>& compiled_layers, std::span<const UnitPlan> units) {
  for (const UnitPlan& unit : units) {
    const std::string layer = innermost(unit.module, compiled_layers);
    if (layer.empty()) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' runs compiled code, and nothing gathers the unit '{}' inside it", layer,
                            unit.module))
        .hint("wrap the layer itself and no module inside it, or set dynamo_backend: NO");
  }
}

}  // namespace accel
