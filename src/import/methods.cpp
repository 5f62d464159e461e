#include "import/methods.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "import/input_checks.hpp"
#include "import/statements.hpp"
#include "structure/structure.hpp"

namespace accel {
namespace {

/// `self.blocks` or `getattr(self.blocks, "0")`: what is at `path` below the module of the method.
std::string attribute_at(std::string_view path) {
  std::string text = "self";
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const std::string_view name = path.substr(0, dot);
    text = is_identifier(name) ? fmt::format("{}.{}", text, name)
                               : fmt::format("getattr({}, {})", text, literal_of(name));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return text;
}

/// A method that has been written.
struct Method {
  std::string name;
  std::vector<std::string> inputs;   ///< The values that the caller gives.
  std::vector<std::string> results;  ///< The values that the caller gets.
};

class MethodWriter {
 public:
  MethodWriter(const ExportedGraph& graph, const nlohmann::json& program, ModuleTree& tree)
      : graph_(graph), program_(program), tree_(tree), statements_(graph) {}

  [[nodiscard]] const std::vector<std::string>& random_operators() const {
    return statements_.random_operators();
  }

  void write_root() {
    const std::set<std::string> live(graph_.outputs.begin(), graph_.outputs.end());
    write(graph_.nodes, 0, 0, live);
  }

 private:
  using Nodes = std::span<const GraphNode>;

  /// Writes the method for a call of `module`: `nodes`, which are `depth` calls deep. `live` are the values
  /// that are used after the call. Nothing if none of the results is used.
  std::optional<Method> write(Nodes nodes, std::size_t depth, std::size_t module,
                              const std::set<std::string>& live) {
    const bool is_root = depth == 0;
    std::vector<std::string>& methods = tree_.at(module).methods;
    const std::size_t place = methods.size();
    methods.emplace_back();  // A call within this one must not get its name.
    Method method;
    method.name = place == 0 ? "forward" : fmt::format("forward_{}", place);
    while (has_attribute(tree_.at(module), method.name)) method.name += "_";
    std::map<std::string, std::string> own = values_of(nodes, module, method.inputs);
    if (is_root) method.inputs = graph_.inputs;
    method.results = is_root ? graph_.outputs : results_of(nodes, live);

    const std::map<std::string, std::string> outer = statements_.expressions();
    statements_.set_expressions(own);
    std::vector<std::string> lines = is_root ? input_checks(program_) : std::vector<std::string>{};
    for (std::size_t at = 0; at < nodes.size();) {
      if (nodes[at].calls.size() <= depth) {
        for (std::string& line : statements_.statements_of(nodes[at])) lines.push_back(std::move(line));
        ++at;
        continue;
      }
      const GraphNode::Call& call = nodes[at].calls[depth];
      std::size_t end = at;
      while (end < nodes.size() && nodes[end].calls.size() > depth && nodes[end].calls[depth] == call) ++end;
      std::set<std::string> later = live;
      for (const GraphNode& node : nodes.subspan(end)) later.insert(node.uses.begin(), node.uses.end());
      const std::size_t child = tree_.find(call.module);
      if (const auto callee = write(nodes.subspan(at, end - at), depth + 1, child, later))
        lines.push_back(call_of(*callee, call.module, tree_.at(module).path));
      at = end;
    }
    tree_.at(module).methods[place] = source_of(method, module, lines);
    statements_.set_expressions(outer);
    if (!is_root && method.results.empty() && lines.empty()) return std::nullopt;
    return method;
  }

  static bool has_attribute(const ImportedModule& module, const std::string& name) {
    const auto has = [&](const std::vector<std::string>& names) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    return has(module.parameters) || has(module.buffers) || has(module.constants) ||
           std::any_of(module.children.begin(), module.children.end(),
                       [&](const auto& child) { return child.first == name; });
  }

  /// The values that `nodes` use and do not define: as expressions those that the module has itself, and in
  /// `inputs` the others.
  std::map<std::string, std::string> values_of(Nodes nodes, std::size_t module,
                                               std::vector<std::string>& inputs) {
    std::set<std::string> known;
    for (const GraphNode& node : nodes) {
      for (const GraphValue& output : node.outputs) known.insert(output.name);
    }
    std::map<std::string, std::string> own;
    const auto add = [&](const std::string& value) {
      if (!known.insert(value).second) return;
      if (const auto path = own_path(value, tree_.at(module).path)) {
        own[value] = attribute_at(*path);
      } else {
        inputs.push_back(value);
      }
    };
    for (const GraphNode& node : nodes) {
      for (const std::string& value : node.uses) add(value);
    }
    // The root may return what it was given.
    if (tree_.at(module).path.empty()) {
      for (const std::string& value : graph_.outputs) add(value);
    }
    return own;
  }

  /// Where below `module` the tensor lies that the input `value` of the graph stands for.
  std::optional<std::string> own_path(const std::string& value, const std::string& module) const {
    const auto found = graph_.attributes.find(value);
    if (found == graph_.attributes.end()) return std::nullopt;
    if (is_inside(found->second, module)) return std::string(below(found->second, module));
    // A tied tensor may have another name here.
    for (const std::string& name : tree_.names_of(found->second)) {
      if (is_inside(name, module)) return std::string(below(name, module));
    }
    return std::nullopt;
  }

  static std::vector<std::string> results_of(Nodes nodes, const std::set<std::string>& live) {
    std::vector<std::string> results;
    for (const GraphNode& node : nodes) {
      for (const GraphValue& output : node.outputs) {
        if (live.contains(output.name)) results.push_back(output.name);
      }
    }
    return results;
  }

  std::string call_of(const Method& callee, const std::string& module, const std::string& caller) const {
    std::string text = fmt::format("({}).{}(", attribute_at(below(module, caller)), callee.name);
    for (const std::string& input : callee.inputs) text += statements_.expression_of(input) + ", ";
    text += ")";
    if (callee.results.empty()) return text;
    std::vector<std::string> targets;
    for (const std::string& result : callee.results) targets.push_back(identifier_of(result));
    return fmt::format("{}{} = {}", fmt::join(targets, ", "), targets.size() > 1 ? "," : "", text);
  }

  std::string source_of(const Method& method, std::size_t module,
                        const std::vector<std::string>& lines) const {
    std::string text = fmt::format("  def {}(self: {}", method.name, tree_.type_of(module));
    for (const std::string& input : method.inputs)
      text += fmt::format(",\n    {}: {}", identifier_of(input), name_of(type_of(input)));
    std::vector<std::string> types;
    std::vector<std::string> values;
    for (const std::string& result : method.results) {
      types.emplace_back(name_of(type_of(result)));
      values.push_back(statements_.expression_of(result));
    }
    std::string type = values.empty() ? "NoneType" : fmt::format("Tuple[{}]", fmt::join(types, ", "));
    std::string result = values.empty() ? "None" : fmt::format("({})", fmt::join(values, ", "));
    if (module == 0 && !graph_.output_names.empty()) {
      type = "Dict[str, Tensor]";
      std::vector<std::string> entries;
      for (std::size_t i = 0; i < values.size(); ++i)
        entries.push_back(fmt::format("{}: {}", literal_of(graph_.output_names[i]), values[i]));
      result = fmt::format("annotate(Dict[str, Tensor], {{{}}})", fmt::join(entries, ", "));
    } else if (values.size() == 1) {
      type = types.front();
      result = values.front();
    }
    text += fmt::format(") -> {}:\n", type);
    for (const std::string& line : lines) text += fmt::format("    {}\n", line);
    text += fmt::format("    return {}\n", result);
    return text;
  }

  GraphValue::Type type_of(const std::string& value) const {
    const auto found = graph_.types.find(value);
    if (found == graph_.types.end()) throw_corrupt(fmt::format("the graph has no value '{}'", value));
    return found->second;
  }

  const ExportedGraph& graph_;
  const nlohmann::json& program_;
  ModuleTree& tree_;
  StatementWriter statements_;
};

}  // namespace

std::vector<std::string> write_methods(const ExportedGraph& graph, const nlohmann::json& program,
                                       ModuleTree& tree) {
  MethodWriter writer(graph, program, tree);
  writer.write_root();
  return writer.random_operators();
}

}  // namespace accel
