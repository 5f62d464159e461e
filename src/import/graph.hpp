#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/pt2/archive.hpp"

namespace accel {

/// A value of an exported graph.
struct GraphValue {
  enum class Type { kTensor, kInt, kBool, kFloat };

  std::string name;
  Type type = Type::kTensor;
};

/// The name of the type in TorchScript, such as "Tensor" or "int".
[[nodiscard]] const char* name_of(GraphValue::Type type);

/// A call of an operator. The arguments stay JSON, as torch's schema has them.
struct GraphNode {
  const nlohmann::json* document = nullptr;
  std::string target;               ///< The operator, such as "torch.ops.aten.linear.default".
  std::vector<GraphValue> outputs;  ///< The results. The tensors of a list are values of their own.
  bool gives_list = false;          ///< The operator gives one list, and `outputs` are its tensors.
  std::vector<std::string> uses;    ///< The values that the arguments name, in order.
  bool counts_batches = false;      ///< The operator counts a batch of a batch norm, in place.
  /// The calls of modules that the node is in, from the root's child to the innermost.
  struct Call {
    std::string key;     ///< The key of the call, which no other call of the module has.
    std::string module;  ///< The path of the module.

    friend bool operator==(const Call&, const Call&) = default;
  };
  std::vector<Call> calls;
};

/// The name of the operator in `target`: "add_" in "torch.ops.aten.add_.Tensor".
[[nodiscard]] std::string_view operator_in(std::string_view target);

/// The operator, the module that calls it, and the line of the author, for messages.
[[nodiscard]] std::string place_of(const GraphNode& node);

/// The innermost line of the author that led to the node and is not torch's, such as "model.py:12". A path
/// within site-packages begins behind that. Empty if the export does not say it.
[[nodiscard]] std::string author_line_of(const GraphNode& node);

/// The graph of an exported program, and what its inputs stand for.
struct ExportedGraph {
  std::vector<GraphNode> nodes;
  std::map<std::string, GraphValue::Type> types;  ///< The type of every value, by the name of the value.
  std::vector<std::string> inputs;                ///< The inputs of the user, in order.
  std::vector<std::string> outputs;               ///< The tensors that the program gives, in order.
  /// The names of the outputs, if the author's forward returned a dict or a dataclass. The imported forward
  /// then returns a dict.
  std::vector<std::string> output_names;
  /// The inputs that are parameters, buffers and constants, by name, with their names in the model.
  std::map<std::string, std::string> attributes;
  std::vector<std::string> parameters;  ///< Names in the model, in the order of its parameters().
  /// Values that are an input of the graph, because they are the result of counting in place.
  std::map<std::string, std::string> aliases;
  std::vector<std::string> buffers;            ///< All buffers, persistent or not.
  std::vector<std::string> constants;          ///< Tensors that are neither parameters nor buffers.
  std::vector<std::string> non_persistent;     ///< Buffers that a state dict does not have, and constants.
  std::vector<std::string> modules;            ///< The paths of all modules, in order of registration.
  std::map<std::string, std::string> classes;  ///< The class of each module that was called, by path.
};

/// The tag and the value of a union of torch's schema, which is an object of one key. Throws Error (kCorrupt)
/// for another value.
[[nodiscard]] std::pair<std::string, const nlohmann::json*> tagged(const nlohmann::json& value);

/// Reads the graph of `archive`, which must outlive it. Throws Error: kFailure that names what accel does not
/// import, kCorrupt if the document is not one of torch.export.
[[nodiscard]] ExportedGraph read_graph(const ckpt::Pt2Archive& archive);

/// The operators that run a graph within them with gradients on or off, or with a setting of autocast.
inline constexpr std::string_view kGradientsSet = "torch.ops.higher_order.wrap_with_set_grad_enabled";
inline constexpr std::string_view kAutocastSet = "torch.ops.higher_order.wrap_with_autocast";

/// Returns which argument is the graph if `node` is one of these operators, and nothing otherwise. The
/// arguments of the graph follow that argument.
[[nodiscard]] std::optional<std::size_t> position_of_block(const GraphNode& node);

/// The inputs, nodes and outputs of a graph within a graph.
struct Subgraph {
  std::vector<std::string> inputs;
  std::vector<GraphNode> nodes;
  std::vector<std::string> outputs;
};
[[nodiscard]] Subgraph read_subgraph(const nlohmann::json& document);

}  // namespace accel
