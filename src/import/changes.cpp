#include "import/changes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"

namespace accel {
namespace {

using nlohmann::json;

/// The tensors that an argument names, one or a list.
std::vector<std::string> tensors_in(const json& argument) {
  std::vector<std::string> names;
  if (argument.contains("as_tensor")) names.push_back(argument.at("as_tensor").at("name").get<std::string>());
  if (argument.contains("as_tensors")) {
    for (const json& tensor : argument.at("as_tensors"))
      names.push_back(tensor.at("name").get<std::string>());
  }
  return names;
}

bool is_in_place(std::string_view op) { return op.ends_with("_") && !op.ends_with("__"); }

/// Whether the operator writes its result into this argument. Results are the tensors that only a keyword can
/// give, such as `out`, or `max` and `max_values`; a few of these are read.
bool is_result(const json& input) {
  constexpr int kKeyword = 2;
  constexpr std::array<std::string_view, 4> kRead = {"weight", "sorter", "fweights", "aweights"};
  const auto name = input.at("name").get<std::string>();
  if (name == "out") return true;
  return input.contains("kind") && input.at("kind") == kKeyword &&
         std::find(kRead.begin(), kRead.end(), name) == kRead.end();
}

/// Whether the operator gives its first argument itself, if that has the wanted dtype already.
bool is_cast(std::string_view op) {
  constexpr std::array<std::string_view, 5> kCasts = {"to", "type_as", "_autocast_to_reduced_precision",
                                                      "_autocast_to_full_precision", "float"};
  return std::find(kCasts.begin(), kCasts.end(), op) != kCasts.end();
}

/// Whether the result may lie in the memory of the first argument. Those that copy sometimes are among them.
bool gives_view(std::string_view op) {
  constexpr std::string_view kViews =
      "_conj _neg_view _reshape_alias _unsafe_view adjoint alias atleast_1d atleast_2d atleast_3d "
      "as_strided broadcast_to broadcast_tensors chunk conj contiguous detach diagonal dropout dsplit "
      "expand expand_as feature_dropout flatten hsplit imag alpha_dropout lift_fresh linalg_diagonal "
      "mH mT matrix_H meshgrid moveaxis movedim narrow numpy_T permute pin_memory positive ravel real "
      "reshape reshape_as resolve_conj resolve_neg select slice split split_with_sizes squeeze "
      "swapaxes swapdims t tensor_split to_dense transpose unbind unflatten unfold unsafe_chunk "
      "unsafe_split unsafe_split_with_sizes unsqueeze view view_as view_as_complex view_as_real vsplit";
  return is_cast(op) || has_word(kViews, op);
}

class ChangeFinder {
 public:
  ChangeFinder(ExportedGraph& graph, const json& tensor_values)
      : graph_(graph), tensor_values_(tensor_values) {
    for (const auto& [value, name] : graph.attributes) roots_[value] = value;
  }

  void run() {
    for (GraphNode& node : graph_.nodes) visit(node, /*is_inner=*/false);
  }

 private:
  void visit(GraphNode& node, bool is_inner) {
    look_within(node);
    const std::string_view op = operator_in(node.target);
    const bool is_aten = node.target.starts_with("torch.ops.aten.");
    const bool changes_self = is_aten && is_in_place(op);
    if (changes_self && node.outputs.empty()) {
      throw Error(ErrorKind::kFailure,
                  fmt::format("{}: it changes tensors in place and has no result, and TorchScript would "
                              "leave it out; accel does not import that",
                              place_of(node)))
          .hint("call the operator for each tensor by itself, as x.mul_(2)");
    }
    const json& inputs = node.document->at("inputs");
    for (const json& input : inputs) {
      const bool is_changed = (changes_self && input.at("name") == "self") || (is_aten && is_result(input));
      for (const std::string& tensor : tensors_in(input.at("arg"))) {
        const auto root = roots_.find(tensor);
        if (is_changed && root != roots_.end()) change(node, root->second, is_inner);
      }
    }
    if (changes_self || !is_aten || inputs.empty() || !gives_view(op)) return;
    for (const std::string& tensor : tensors_in(inputs.at(0).at("arg"))) {
      const auto root = roots_.find(tensor);
      if (root == roots_.end()) continue;
      const std::string changed = root->second;
      for (const GraphValue& output : node.outputs) {
        if (!is_cast(op) || is_inner || has_same_dtype(tensor, output.name)) roots_[output.name] = changed;
      }
    }
  }

  /// The node changes the memory of the input `changed` of the graph.
  void change(GraphNode& node, const std::string& changed, bool is_inner) {
    const std::string& name = graph_.attributes.at(changed);
    const bool counts = operator_in(node.target) == "add_" &&
                        (name == "num_batches_tracked" || name.ends_with(".num_batches_tracked"));
    if (!counts || is_inner) refuse_change(node, name);
    node.counts_batches = true;
    for (const GraphValue& output : node.outputs) {
      roots_[output.name] = changed;
      graph_.aliases[output.name] = changed;
    }
    node.outputs.clear();
  }

  /// Whether two values have the same dtype, or that of one is not known.
  [[nodiscard]] bool has_same_dtype(const std::string& one, const std::string& other) const {
    const auto dtype_of = [&](const std::string& name) -> std::optional<json> {
      const auto value = tensor_values_.find(name);
      if (value == tensor_values_.end() || !value->is_object() || !value->contains("dtype"))
        return std::nullopt;
      return value->at("dtype");
    };
    const std::optional<json> first = dtype_of(one);
    const std::optional<json> second = dtype_of(other);
    return !first || !second || *first == *second;
  }

  [[noreturn]] static void refuse_change(const GraphNode& node, const std::string& name) {
    throw Error(ErrorKind::kFailure,
                fmt::format("{}: it changes '{}' in place, and the graph does not say whether "
                            "in training alone; accel does not import that",
                            place_of(node), name))
        .hint("keep such a state outside of the model; a model of torch.jit.script may change its buffers");
  }

  void look_within(const GraphNode& node) {
    const std::optional<std::size_t> at = position_of_block(node);
    if (!at) return;
    const json& inputs = node.document->at("inputs");
    Subgraph inner = read_subgraph(inputs.at(*at).at("arg").at("as_graph").at("graph"));
    // Names within the graph may be those of other values outside.
    const std::map<std::string, std::string> outer = roots_;
    for (std::size_t i = 0; i < inner.inputs.size(); ++i) {
      const json& given = inputs.at(*at + 1 + i).at("arg");
      const auto found = given.contains("as_tensor")
                             ? outer.find(given.at("as_tensor").at("name").get<std::string>())
                             : outer.end();
      roots_.erase(inner.inputs[i]);
      if (found != outer.end()) roots_[inner.inputs[i]] = found->second;
    }
    for (GraphNode& statement : inner.nodes) visit(statement, /*is_inner=*/true);
    const std::map<std::string, std::string> within = std::exchange(roots_, outer);
    for (std::size_t i = 0; i < inner.outputs.size() && i < node.outputs.size(); ++i) {
      if (const auto found = within.find(inner.outputs[i]); found != within.end())
        roots_[node.outputs[i].name] = found->second;
    }
  }

  ExportedGraph& graph_;
  const json& tensor_values_;
  std::map<std::string, std::string> roots_;  ///< Maps a value to the input whose memory it is.
};

}  // namespace

void find_changes(ExportedGraph& graph, const json& tensor_values) {
  ChangeFinder(graph, tensor_values).run();
}

}  // namespace accel
