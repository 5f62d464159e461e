#include "structure/table_sizes.hpp"

#include <map>
#include <string>
#include <string_view>

namespace accel {

TableSizes table_sizes(const ModelStructure& model) {
  std::map<std::string, std::int64_t> rows;
  for (const ParameterInfo& parameter : model.parameters) {
    if (parameter.shape.size() != 2) continue;
    for (const std::string& fqn : parameter.fqns) rows[fqn] = parameter.shape.front();
  }
  TableSizes sizes;
  for (const ModuleInfo& module : model.modules) {
    if (!module.class_name.ends_with("Embedding")) continue;
    const auto weight = rows.find(module.name.empty() ? "weight" : module.name + ".weight");
    if (weight == rows.end()) continue;
    const std::string_view last = std::string_view(module.name).substr(module.name.rfind('.') + 1);
    // A table of relative positions has a row for a distance, and says nothing of the length.
    if (last.find("rel") != std::string_view::npos) continue;
    const bool is_positions = last == "wpe" || last.find("pos") != std::string_view::npos;
    std::optional<std::int64_t>& size = is_positions ? sizes.positions : sizes.tokens;
    if (!size) size = weight->second;
  }
  return sizes;
}

}  // namespace accel
