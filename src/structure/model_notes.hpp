#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accel {

/// What our exporters write about a model into its extra file `accel.json`. Every part may be missing.
struct ModelNotes {
  std::vector<std::string> layer_classes;   ///< Classes to wrap if the configuration names none.
  std::vector<std::string> non_persistent;  ///< Buffers that are in the file, but not in a state dict.
  std::vector<std::string> inputs;          ///< The names of forward's arguments, in order; empty if unknown.
  std::vector<std::string> outputs;         ///< The names of forward's results, in order; empty if unknown.
  bool is_exported = false;                 ///< The model was imported from a program of torch.export.
  /// The model shifts its labels itself before it computes its loss, as those of transformers do: the label
  /// of a token is the token itself.
  bool shifts_labels = false;
  /// The dtype in which the graph computes: "bfloat16", "float16" or "float32". Empty if any will do.
  std::string dtype;
  /// A JSON list that says of what in a directory of weights some tensors consist; ckpt::parse_conversions()
  /// reads it. It is empty if there is none.
  std::string weight_conversions;
  /// The text of the adapter_config.json with which PEFT loads the adapter of the model. It is empty if the
  /// model has no adapter.
  std::string adapter_config;
  bool names_layers =
      false;  ///< The notes have layer_classes, which are an empty list if there are no units.
  /// Whether documents in one sample, each with position_ids from 0 on, do not see each other, as the
  /// exporter found. Absent if nobody has looked.
  std::optional<bool> keeps_documents_apart = {};
  /// The most tokens of a sequence for which the model was made, whether a table says it or not.
  std::optional<std::int64_t> max_positions = {};
  /// Patterns for modules, in which `*` stands for a number, and their styles of tensor parallelism in the
  /// words of transformers, such as "model.layers.*.mlp.up_proj" and "colwise".
  std::vector<std::pair<std::string, std::string>> tp_plan = {};
  /// The model is right with tp_plan for numbers of ranks that divide this number; 0 without a plan.
  std::int64_t tp_heads = 0;
};

/// Parses `text`, the content of the extra file, which is empty if there is no such file. Throws Error
/// (kUsage) if the text is malformed or names another dtype.
ModelNotes parse_notes(const std::string& text);

/// Whether an argument of forward has one of the names that models of transformers give to inputs with a
/// meaning of their own, so that it takes the data of this name and no other.
[[nodiscard]] bool is_known_input(std::string_view name);

}  // namespace accel
