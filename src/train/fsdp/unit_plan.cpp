#include "train/fsdp/unit_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace accel::train {
namespace {

bool is_inside(std::string_view name, std::string_view module) {
  return name.size() > module.size() && name.substr(0, module.size()) == module && name[module.size()] == '.';
}

/// Pre-order with the name's depth tells the tree: a module is finished when the next one is not inside it.
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

/// The innermost unit around `fqn`: the longest module path in `units` that is a prefix of it; empty for the
/// root.
std::string innermost(const std::string& fqn, const std::set<std::string>& units) {
  std::string name = fqn;
  for (std::size_t dot = name.rfind('.'); dot != std::string::npos; dot = name.rfind('.')) {
    name.resize(dot);
    if (units.contains(name)) return name;
  }
  return {};
}

void check_classes(const ModelStructure& model, const std::vector<std::string>& wanted) {
  std::set<std::string> there;
  for (const ModuleInfo& module : model.modules) there.insert(module.class_name);
  for (const std::string& name : wanted) {
    if (there.contains(name)) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("fsdp_transformer_layer_cls_to_wrap: no module of class '{}' in the model", name))
        .hint(fmt::format("the model's classes are {}", fmt::join(there, ", ")));
  }
}

}  // namespace

std::vector<std::string> wrapped_modules(const ModelStructure& model, const core::FsdpConfig& config) {
  std::vector<std::string> names;
  if (config.auto_wrap_policy == core::WrapPolicy::kNone) return names;
  if (config.auto_wrap_policy == core::WrapPolicy::kSize) {
    throw Error(ErrorKind::kUsage, "fsdp_auto_wrap_policy: SIZE_BASED_WRAP is not there yet")
        .hint("use TRANSFORMER_BASED_WRAP or NO_WRAP");
  }
  const auto& classes = config.transformer_layer_cls_to_wrap;
  if (classes.empty()) {
    throw Error(
        ErrorKind::kUsage,
        "fsdp_transformer_layer_cls_to_wrap is not set, and the model file names no layer classes of its own")
        .hint("list the class names of the layers, separated by commas");
  }
  check_classes(model, classes);
  for (const ModuleInfo& module : model.modules) {
    if (module.name.empty()) continue;
    if (std::find(classes.begin(), classes.end(), module.class_name) != classes.end())
      names.push_back(module.name);
  }
  return names;
}

std::vector<UnitPlan> plan_units(const ModelStructure& model, const core::FsdpConfig& config) {
  const auto wrapped = wrapped_modules(model, config);
  const std::set<std::string> names(wrapped.begin(), wrapped.end());

  std::vector<UnitPlan> units;
  for (ModuleInfo& module : post_order(model.modules)) {
    if (names.contains(module.name))
      units.push_back({std::move(module.name), std::move(module.class_name), {}});
  }
  units.push_back({"", model.modules.empty() ? "" : model.modules.front().class_name, {}});

  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < units.size(); ++i) index[units[i].module] = i;
  bool trainable = false;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const ParameterInfo& parameter = model.parameters[i];
    trainable |= parameter.requires_grad;
    std::string owner = innermost(parameter.fqns.front(), names);
    for (const std::string& fqn : parameter.fqns) {
      if (parameter.foreign || innermost(fqn, names) != owner) owner.clear();
    }
    units[index.at(owner)].parameters.push_back(i);
  }
  if (!trainable)
    throw Error(ErrorKind::kUsage,
                "the model has no parameter that requires grad; there is nothing to train");
  return units;
}

}  // namespace accel::train
