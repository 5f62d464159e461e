#include "structure/table_sizes.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "base/text.hpp"

namespace accel {
namespace {

constexpr std::string_view kPositions =
    "wpe position positions position_embedding pos_embedding pos_embeddings position_embeddings "
    "positional_embedding pos_emb pos_embed embed_positions embed_position pos_encoding "
    "positional_embeddings";

/// Tables of kinds of tokens, languages and the like have fewer rows than a vocabulary.
constexpr std::int64_t kFewest = 128;

}  // namespace

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
    const bool is_positions = has_word(kPositions, last);
    // A table of relative positions has a row for a distance, and "pos_tag" is no position.
    if (!is_positions &&
        (last.find("rel") != std::string_view::npos || last.find("pos") != std::string_view::npos))
      continue;
    std::optional<std::int64_t>& size = is_positions ? sizes.positions : sizes.tokens;
    if (!size) size = weight->second;
    if (!is_positions && weight->second >= kFewest)
      sizes.least_tokens = std::min(sizes.least_tokens.value_or(weight->second), weight->second);
  }
  return sizes;
}

}  // namespace accel
