#include "import/output_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>

#include "base/error.hpp"
#include "base/files/json_text.hpp"

namespace accel {
namespace {

using nlohmann::json;

/// The keys of a node of a tree specification (torch.utils._pytree): those of a dict or the fields of a
/// dataclass. Empty for a tuple, a list and a leaf.
std::vector<std::string> keys_of(const json& node) {
  const json& context = node.at("context");
  if (!context.is_string()) return {};
  json keys = parse_json_or_discard(context.get<std::string>());
  // The context of torch.export.register_dataclass is the fields with values and those without.
  if (keys.is_array() && !keys.empty() && keys.front().is_array()) keys = json(keys.front());
  const bool are_names =
      keys.is_array() && keys.size() == node.at("children_spec").size() &&
      std::all_of(keys.begin(), keys.end(), [](const json& key) { return key.is_string(); });
  return are_names ? keys.get<std::vector<std::string>>() : std::vector<std::string>{};
}

void add_leaves(const json& node, const std::string& name, std::vector<std::string>& names, int depth = 0) {
  constexpr int kDeepest = 50;
  if (depth > kDeepest) throw_corrupt("the description of the outputs nests too deeply");
  if (node.at("type").is_null()) {
    names.push_back(name);
    return;
  }
  const json& children = node.at("children_spec");
  const std::vector<std::string> keys = keys_of(node);
  for (std::size_t i = 0; i < children.size(); ++i) {
    const std::string key = keys.empty() ? std::to_string(i) : keys[i];
    add_leaves(children[i], name.empty() ? key : fmt::format("{}.{}", name, key), names, depth + 1);
  }
}

}  // namespace

std::vector<std::string> output_names(const json& program) {
  const json& module = program.at("graph_module");
  for (const json& call : module.at("module_call_graph")) {
    if (call.at("fqn") != "" || !call.contains("signature") || call.at("signature").is_null()) continue;
    const json spec = parse_json(call.at("signature").at("out_spec").get<std::string>());
    if (!spec.is_array() || spec.size() != 2 || spec[0] != 1) return {};
    if (keys_of(spec[1]).empty()) return {};
    std::vector<std::string> names;
    add_leaves(spec[1], "", names);
    if (names.size() != module.at("signature").at("output_specs").size())
      throw_corrupt("the description of the outputs does not fit their number");
    std::set<std::string> seen;
    for (const std::string& name : names) {
      if (seen.insert(name).second) continue;
      throw Error(ErrorKind::kFailure, fmt::format("two outputs of forward would be called '{}'", name))
          .hint("give keys without dots to the dict that forward returns");
    }
    return names;
  }
  return {};
}

}  // namespace accel
