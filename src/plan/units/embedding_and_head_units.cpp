#include "plan/units/embedding_and_head_units.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>

namespace accel {

EmbeddingAndHeadUnits embedding_and_head_units(const ModelStructure& model, const config::FsdpConfig& config,
                                               const std::vector<std::string>& wrapped) {
  if (config.version == 1 || wrapped.empty()) return {};
  std::unordered_map<std::string_view, const ParameterInfo*> untied;
  for (const ParameterInfo& parameter : model.parameters) {
    if (parameter.fqns.size() == 1 && !parameter.cross_unit && !parameter.replicated &&
        parameter.shape.size() == 2)
      untied.emplace(parameter.fqns.front(), &parameter);
  }
  std::map<std::vector<std::int64_t>, EmbeddingAndHeadUnits> by_shape;
  for (const ModuleInfo& module : model.modules) {
    const bool is_embedding = module.class_name.ends_with("Embedding");
    if (!is_embedding && module.class_name != "Linear") continue;
    const auto weight = untied.find(module.name + ".weight");
    if (weight == untied.end()) continue;
    // A square shape is rather that of a layer and of a table of positions that happen to have one size.
    if (weight->second->shape[0] == weight->second->shape[1]) continue;
    if (std::any_of(wrapped.begin(), wrapped.end(),
                    [&](const std::string& unit) { return is_at_or_inside(module.name, unit); })) {
      continue;
    }
    EmbeddingAndHeadUnits& same = by_shape[weight->second->shape];
    (is_embedding ? same.embeddings : same.heads).push_back(module.name);
  }
  EmbeddingAndHeadUnits result;
  for (const auto& [shape, same] : by_shape) {
    if (same.embeddings.empty() || same.heads.empty()) continue;
    result.embeddings.insert(result.embeddings.end(), same.embeddings.begin(), same.embeddings.end());
    result.heads.insert(result.heads.end(), same.heads.begin(), same.heads.end());
  }
  return result;
}

}  // namespace accel
