#include "plan/parameter_groups.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/checked.hpp"
#include "structure/table_sizes.hpp"

namespace accel {

std::vector<ParameterGroupInfo> parameter_groups(const ModelStructure& model, const OptimizerPlan& plan) {
  // By the first group that is alike. The last of all are the parameters that keep their values.
  std::map<std::size_t, ParameterGroupInfo> rows;
  for (const ParameterInfo& parameter : model.parameters) {
    const std::size_t index = plan.group_of(parameter.fqns, parameter.shape);
    const OptimizerGroup& group = plan.groups()[index];
    const bool is_frozen = !parameter.requires_grad;
    ParameterGroupInfo& row = rows[is_frozen ? plan.groups().size() + index : group.param_group];
    if (is_frozen) {
      row.pattern = plan.freezes(parameter.fqns) ? group.pattern : "";
      row.optimizer = "none";
    } else if (row.tensors == 0) {
      row = {group.pattern, group.type, group.lr, group.options.weight_decay.value_or(0)};
    }
    ++row.tensors;
    row.elements += checked_numel(parameter.shape);
  }
  std::vector<ParameterGroupInfo> groups;
  for (auto& [index, row] : rows) {
    const bool is_frozen = row.optimizer == "none";
    if (is_frozen && !groups.empty() && groups.back().optimizer == "none" &&
        groups.back().pattern == row.pattern) {
      groups.back().tensors += row.tensors;
      groups.back().elements += row.elements;
    } else {
      groups.push_back(std::move(row));
    }
  }
  return groups;
}

std::string muon_warning(const ModelStructure& model, const OptimizerPlan& plan) {
  const std::optional<std::int64_t> tokens = table_sizes(model).tokens;
  std::set<std::string> tables;
  for (const ModuleInfo& module : model.modules) {
    if (module.class_name.ends_with("Embedding")) tables.insert(module.name + ".weight");
  }
  std::vector<std::string> names;
  for (const ParameterInfo& parameter : model.parameters) {
    const bool is_muon = parameter.requires_grad &&
                         plan.groups()[plan.group_of(parameter.fqns, parameter.shape)].type == "muon";
    if (!is_muon) continue;
    const bool is_table =
        std::ranges::any_of(parameter.fqns, [&](const std::string& name) { return tables.contains(name); });
    const bool is_head = tokens && *tokens > 1 && parameter.shape.front() == *tokens;
    if (is_table || is_head) names.push_back(parameter.fqns.front());
  }
  if (names.empty()) return "";
  return fmt::format(
      "Muon trains {}, embeddings or a head, for which it is not meant: give them AdamW by a section of "
      "training.optimizer.groups with optimizer: adamw and a learning rate of their own",
      fmt::join(names, ", "));
}

}  // namespace accel
