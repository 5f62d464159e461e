#include "import/graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace accel {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& what, const char* hint = "") {
  throw Error(ErrorKind::kFailure, fmt::format("{}, which accel does not import", what)).hint(hint);
}

std::optional<GraphValue::Type> type_of_tag(std::string_view tag) {
  if (tag == "as_tensor") return GraphValue::Type::kTensor;
  if (tag == "as_sym_int") return GraphValue::Type::kInt;
  if (tag == "as_sym_bool") return GraphValue::Type::kBool;
  if (tag == "as_sym_float") return GraphValue::Type::kFloat;
  return std::nullopt;
}

/// The name of a value, which a symbolic number has under another key.
std::string name_in(const json& value) {
  return value.contains("name") ? value.at("name").get<std::string>()
                                : value.at("as_name").get<std::string>();
}

/// The value that an input or output of a graph names; nothing for None and for a number that is fixed.
std::optional<GraphValue> value_of(const json& argument) {
  const auto [tag, value] = tagged(argument);
  if (const auto type = type_of_tag(tag); type && (value->contains("name") || value->contains("as_name")))
    return GraphValue{name_in(*value), *type};
  return std::nullopt;
}

void add_outputs(const json& output, GraphNode& node) {
  const auto [tag, value] = tagged(output);
  if (tag == "as_none") return;
  if (tag == "as_tensors") {
    node.gives_list = true;
    for (const json& tensor : *value)
      node.outputs.push_back({tensor.at("name").get<std::string>(), GraphValue::Type::kTensor});
    return;
  }
  const auto named = value_of(output);
  if (!named) refuse(fmt::format("'{}' has an output {}", node.target, tag));
  node.outputs.push_back(*named);
}

/// Adds the values that an argument names. A graph within it has values of its own.
void add_uses(const json& argument, std::vector<std::string>& uses) {
  if (argument.is_array()) {
    for (const json& item : argument) add_uses(item, uses);
    return;
  }
  if (!argument.is_object()) return;
  for (const auto& [key, value] : argument.items()) {
    if (key == "as_graph" || key == "as_string" || key == "as_device") continue;
    if ((key == "name" || key == "as_name") && value.is_string()) {
      uses.push_back(value.get<std::string>());
    } else {
      add_uses(value, uses);
    }
  }
}

bool is_inside(std::string_view path, std::string_view module) {
  return module.empty()
             ? !path.empty()
             : path.size() > module.size() && path.starts_with(module) && path[module.size()] == '.';
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// The entries "key,path,class" of a node's stack of modules, the root's first.
struct StackEntry {
  std::string key;
  std::string module;
  std::string class_name;
};

std::vector<StackEntry> stack_of(const json& node) {
  std::vector<StackEntry> stack;
  const json& metadata = node.at("metadata");
  const auto found = metadata.find("nn_module_stack");
  if (found == metadata.end() || !found->is_string()) return stack;
  const auto text = found->get<std::string>();
  if (text.empty() || text.find("_empty_nn_module_stack") != std::string::npos) return stack;
  for (const std::string_view entry : split(text, ';')) {
    const std::vector<std::string_view> parts = split(entry, ',');
    if (parts.size() < 3) throw_corrupt(fmt::format("the stack of modules '{}' is malformed", text));
    std::string_view module = parts[1];
    module = module.substr(0, module.find('@'));  // "blocks.0@1" is the second call.
    const std::string_view type = parts.back();
    stack.push_back({std::string(parts[0]) + "," + std::string(parts[1]), std::string(module),
                     std::string(type.substr(type.rfind('.') + 1))});
  }
  return stack;
}

GraphNode read_node(const json& document) {
  GraphNode node;
  node.document = &document;
  node.target = document.at("target").get<std::string>();
  for (const json& output : document.at("outputs")) add_outputs(output, node);
  for (const json& input : document.at("inputs")) add_uses(input.at("arg"), node.uses);
  return node;
}

class GraphReader {
 public:
  explicit GraphReader(const json& program) : module_(program.at("graph_module")) {}

  ExportedGraph read() {
    read_modules();
    read_inputs();
    const json& graph = module_.at("graph");
    for (const json& input : graph.at("inputs")) {
      if (const auto value = value_of(input)) graph_.types[value->name] = value->type;
    }
    for (const json& document : graph.at("nodes")) {
      GraphNode node = read_node(document);
      for (const GraphValue& output : node.outputs) graph_.types[output.name] = output.type;
      graph_.nodes.push_back(std::move(node));
    }
    read_calls();
    read_outputs();
    return std::move(graph_);
  }

 private:
  void read_modules() {
    for (const json& entry : module_.at("module_call_graph")) {
      const auto path = entry.at("fqn").get<std::string>();
      if (!path.empty() && path.find('@') == std::string::npos) graph_.modules.push_back(path);
    }
  }

  void read_inputs() {
    for (const json& spec : module_.at("signature").at("input_specs")) {
      const auto [tag, value] = tagged(spec);
      if (tag == "parameter") {
        add_attribute(*value, "parameter_name", graph_.parameters);
      } else if (tag == "buffer") {
        add_attribute(*value, "buffer_name", graph_.buffers);
        if (!value->at("persistent").get<bool>()) graph_.non_persistent.push_back(graph_.buffers.back());
      } else if (tag == "tensor_constant") {
        add_attribute(*value, "tensor_constant_name", graph_.buffers);
        graph_.non_persistent.push_back(graph_.buffers.back());
      } else if (tag == "user_input") {
        const auto input = value_of(value->at("arg"));
        if (!input) continue;  // None, or a number that the export has fixed.
        if (input->type != GraphValue::Type::kTensor)
          refuse(fmt::format("input '{}' is a number that may change", input->name));
        graph_.inputs.push_back(input->name);
      } else if (tag != "constant_input") {
        refuse(fmt::format("the program has an input of kind '{}'", tag));
      }
    }
  }

  void add_attribute(const json& spec, const char* key, std::vector<std::string>& names) {
    auto name = spec.at(key).get<std::string>();
    graph_.attributes[spec.at("arg").at("name").get<std::string>()] = name;
    names.push_back(std::move(name));
  }

  void read_outputs() {
    for (const json& spec : module_.at("signature").at("output_specs")) {
      const auto [tag, value] = tagged(spec);
      if (tag != "user_output") {
        refuse(fmt::format("the program has an output of kind '{}'", tag),
               "export with torch.export.export and without run_decompositions");
      }
      const auto output = value_of(value->at("arg"));
      if (output && output->type == GraphValue::Type::kTensor) graph_.outputs.push_back(output->name);
    }
    if (graph_.outputs.empty()) refuse("the program gives no tensor");
  }

  /// Sets the calls of each node. A node without a stack of its own is where its neighbours both are.
  void read_calls() {
    std::vector<std::optional<std::vector<GraphNode::Call>>> calls;
    for (const GraphNode& node : graph_.nodes) {
      const std::vector<StackEntry> stack = stack_of(*node.document);
      if (stack.empty()) {
        calls.emplace_back();
        continue;
      }
      std::vector<GraphNode::Call> own;
      std::string_view outer;
      for (const StackEntry& entry : stack) {
        graph_.classes[entry.module] = entry.class_name;
        if (entry.module.empty()) continue;
        // A module that is called from outside of its parent is not entered.
        if (!is_inside(entry.module, outer)) break;
        own.push_back({entry.key, entry.module});
        outer = entry.module;
      }
      calls.emplace_back(std::move(own));
    }
    std::vector<GraphNode::Call> before;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!calls[i]) calls[i] = common(before, next_of(calls, i));
      graph_.nodes[i].calls = before = *calls[i];
    }
  }

  static std::vector<GraphNode::Call> next_of(
      const std::vector<std::optional<std::vector<GraphNode::Call>>>& calls, std::size_t at) {
    for (; at < calls.size(); ++at) {
      if (calls[at]) return *calls[at];
    }
    return {};
  }

  static std::vector<GraphNode::Call> common(const std::vector<GraphNode::Call>& a,
                                             const std::vector<GraphNode::Call>& b) {
    const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
    return {a.begin(), end};
  }

  const json& module_;
  ExportedGraph graph_;
};

}  // namespace

std::pair<std::string, const json*> tagged(const json& value) {
  if (!value.is_object() || value.size() != 1)
    throw_corrupt("the graph has a union that is not of one value");
  return {value.begin().key(), &value.begin().value()};
}

const char* name_of(GraphValue::Type type) {
  switch (type) {
    case GraphValue::Type::kTensor:
      return "Tensor";
    case GraphValue::Type::kInt:
      return "int";
    case GraphValue::Type::kBool:
      return "bool";
    case GraphValue::Type::kFloat:
      break;
  }
  return "float";
}

ExportedGraph read_graph(const ckpt::Pt2Archive& archive) { return GraphReader(archive.program()).read(); }

Subgraph read_subgraph(const json& document) {
  Subgraph graph;
  for (const json& input : document.at("inputs")) {
    const auto value = value_of(input);
    if (!value) refuse("a graph within the graph has an input that is not a value");
    graph.inputs.push_back(value->name);
  }
  for (const json& node : document.at("nodes")) graph.nodes.push_back(read_node(node));
  for (const json& output : document.at("outputs")) {
    const auto value = value_of(output);
    if (!value) refuse("a graph within the graph has an output that is not a value");
    graph.outputs.push_back(value->name);
  }
  return graph;
}

}  // namespace accel
