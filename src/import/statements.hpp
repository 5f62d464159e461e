#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "import/graph.hpp"

namespace accel {

/// The name of a value in TorchScript: `name` itself, unless it has a meaning there.
[[nodiscard]] std::string identifier_of(std::string_view name);

/// Whether `name` can follow a dot.
[[nodiscard]] bool is_identifier(std::string_view name);

/// The text as a string literal of TorchScript.
[[nodiscard]] std::string literal_of(std::string_view text);

/// torch's classes for `with torch.no_grad()` and `with torch.autocast(...)`.
inline constexpr const char* kNoGradClass = "__torch__.torch.autograd.grad_mode.no_grad";
inline constexpr const char* kAutocastClass = "__torch__.torch.amp.autocast_mode.autocast";

/// Writes nodes as statements of TorchScript, in the form of the code in an archive.
class StatementWriter {
 public:
  /// `graph` must outlive the writer.
  explicit StatementWriter(const ExportedGraph& graph);

  /// Values that are not variables, such as `self.weight`, by name. They replace those of an earlier call.
  void set_expressions(std::map<std::string, std::string> expressions);
  [[nodiscard]] const std::map<std::string, std::string>& expressions() const { return expressions_; }
  /// The value as an expression.
  [[nodiscard]] std::string expression_of(const std::string& value) const;

  /// The statements of a node, a line each, of the class's method `self`. A comment at the end of each line
  /// says where the author wrote it, for messages at run time (train/graph/analysis/author_line.hpp). Throws
  /// Error (kFailure) that names an operator or an argument that is not imported.
  [[nodiscard]] std::vector<std::string> statements_of(const GraphNode& node);

  /// Operators that draw random numbers in either mode, with their places.
  [[nodiscard]] const std::vector<std::string>& random_operators() const { return random_; }

 private:
  [[nodiscard]] std::string argument_of(const nlohmann::json& argument) const;
  [[nodiscard]] std::vector<std::string> lines_of(const GraphNode& node);
  [[nodiscard]] std::vector<std::string> gradients_set(const GraphNode& node);
  [[nodiscard]] std::vector<std::string> autocast_set(const GraphNode& node);
  /// The statements of the graph that is argument number `at` of a node, with its arguments and results.
  [[nodiscard]] std::vector<std::string> block_of(const GraphNode& node, std::size_t at);
  /// The statement `with` of an object of the class `type`, with `lines` below it.
  [[nodiscard]] std::vector<std::string> within(const char* type, const std::string& arguments,
                                                const std::vector<std::string>& lines);
  void look_for_training(const GraphNode& node);
  [[nodiscard]] std::string flag_of(const GraphNode& node, const nlohmann::json& input) const;
  [[nodiscard]] std::string fresh_name() { return "_" + std::to_string(count_++); }

  const ExportedGraph& graph_;
  std::vector<std::string> random_;
  bool trains_ = false;  ///< Whether a flag `train` is set somewhere: the model was in training mode.
  std::map<std::string, std::string> expressions_;
  int count_ = 0;
  int depth_ = 0;  ///< How many graphs within graphs are being written.
};

}  // namespace accel
