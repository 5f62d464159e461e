#include "import/graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "import/changes.hpp"
#include "import/output_names.hpp"
#include "structure/structure.hpp"

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
void add_uses(const json& argument, std::vector<std::string>& uses, int depth = 0) {
  constexpr int kDeepest = 20;
  if (depth > kDeepest) throw_corrupt("the graph has an argument that nests too deeply");
  if (argument.is_array()) {
    for (const json& item : argument) add_uses(item, uses, depth + 1);
    return;
  }
  if (!argument.is_object()) return;
  for (const auto& [key, value] : argument.items()) {
    if (key == "as_graph" || key == "as_string" || key == "as_device") continue;
    if ((key == "name" || key == "as_name") && value.is_string()) {
      uses.push_back(value.get<std::string>());
    } else {
      add_uses(value, uses, depth + 1);
    }
  }
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
  explicit GraphReader(const json& program) : program_(program), module_(program.at("graph_module")) {}

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
    find_changes(graph_, graph.contains("tensor_values") ? graph.at("tensor_values") : json::object());
    for (GraphNode& node : graph_.nodes) {
      for (std::string& use : node.uses) {
        if (const auto alias = graph_.aliases.find(use); alias != graph_.aliases.end()) use = alias->second;
      }
    }
    read_outputs();
    return std::move(graph_);
  }

 private:
  void read_modules() {
    for (const json& entry : module_.at("module_call_graph")) {
      const auto path = entry.at("fqn").get<std::string>();
      if (path == "training" || path.ends_with(".training"))
        refuse(fmt::format("a module has the name '{}'", path));
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
        add_attribute(*value, "tensor_constant_name", graph_.constants);
        graph_.non_persistent.push_back(graph_.constants.back());
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
    const json& specs = module_.at("signature").at("output_specs");
    for (const json& spec : specs) {
      const std::string tag = tagged(spec).first;
      if (tag != "user_output") {
        refuse(fmt::format("the program has an output of kind '{}'", tag),
               "export with torch.export.export and without run_decompositions");
      }
    }
    const std::vector<std::string> names = accel::output_names(program_);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const auto output = value_of(tagged(specs[i]).second->at("arg"));
      if (!output || output->type != GraphValue::Type::kTensor) continue;
      graph_.outputs.push_back(output->name);
      if (!names.empty()) graph_.output_names.push_back(names[i]);
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

  const json& program_;
  const json& module_;
  ExportedGraph graph_;
};

}  // namespace

std::pair<std::string, const json*> tagged(const json& value) {
  if (!value.is_object() || value.size() != 1)
    throw_corrupt("the graph has a union that is not of one value");
  return {value.begin().key(), &value.begin().value()};
}

std::string_view operator_in(std::string_view target) {
  const std::string_view name = target.substr(0, target.rfind('.'));
  return name.substr(name.rfind('.') + 1);
}

std::string place_of(const GraphNode& node) {
  std::string where;
  const json& metadata = node.document->at("metadata");
  if (const auto trace = metadata.find("stack_trace"); trace != metadata.end() && trace->is_string()) {
    // The innermost frame comes last. Code that torch has generated has no file.
    constexpr std::string_view kFrame = "File \"";
    std::string_view text = trace->get_ref<const std::string&>();
    std::size_t frame = text.rfind(kFrame);
    while (frame != std::string_view::npos && text.substr(frame + kFrame.size()).starts_with('<')) {
      text = text.substr(0, frame);
      frame = text.rfind(kFrame);
    }
    if (frame != std::string_view::npos) where = fmt::format(", at {}", trim(text.substr(frame)));
    std::replace(where.begin(), where.end(), '\n', ' ');
  }
  const std::string module =
      node.calls.empty() ? "the root" : fmt::format("module '{}'", node.calls.back().module);
  return fmt::format("{} in {}{}", node.target, module, where);
}

std::string author_line_of(const GraphNode& node) {
  const json& metadata = node.document->at("metadata");
  const auto trace = metadata.find("stack_trace");
  if (trace == metadata.end() || !trace->is_string()) return "";
  constexpr std::string_view kFile = "File \"";
  constexpr std::string_view kLine = "\", line ";
  constexpr std::string_view kPackages = "-packages/";
  constexpr std::size_t kLongest = 300;
  const auto text = trace->get<std::string>();
  std::string found;
  for (std::size_t at = text.find(kFile); at != std::string::npos; at = text.find(kFile, at + 1)) {
    const std::size_t begin = at + kFile.size();
    const std::size_t end = text.find(kLine, begin);
    if (end == std::string::npos) break;
    std::string_view file(text.data() + begin, end - begin);
    if (const std::size_t packages = file.rfind(kPackages); packages != std::string_view::npos)
      file.remove_prefix(packages + kPackages.size());
    const std::size_t digits = end + kLine.size();
    const std::size_t digits_end = std::min(text.find_first_not_of("0123456789", digits), text.size());
    const bool is_plain = file.size() < kLongest && std::none_of(file.begin(), file.end(), [](char c) {
                            return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
                          });
    if (!is_plain || file.empty() || digits_end == digits || file.starts_with("torch/")) continue;
    found = fmt::format("{}:{}", file, std::string_view(text).substr(digits, digits_end - digits));
  }
  return found;
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

std::optional<std::size_t> position_of_block(const GraphNode& node) {
  if (node.target == kGradientsSet) return 1;
  if (node.target == kAutocastSet) return 4;
  return std::nullopt;
}

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
