#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/formats/data_formats.hpp"
#include "data/formats/sample_source.hpp"
#include "import/open_model.hpp"
#include "plan/memory/footprint.hpp"

namespace accel::cli {

/// What the user says about a first configuration.
struct StarterOptions {
  std::string model;                ///< The path of the model file.
  std::string name;                 ///< The name of the run, below runs/.
  std::optional<std::string> data;  ///< The training data; if absent, the configuration has a placeholder.
  /// The fields of the training data, if they have names of their own and are there.
  std::optional<std::vector<SampleField>> fields;
  std::optional<std::string> weights;  ///< Where the weights come from, if not from the model file.
  int processes = 1;
  bool use_cpu = false;
  bool sees_gpus = false;  ///< This machine has a GPU.
};

/// A model with more parameters is sharded. A rank that has a copy of a smaller one needs at most 1.6 GB for
/// parameters, gradients and the state of AdamW, which are 16 bytes a parameter.
inline constexpr std::int64_t kMostCopiedElements = 100'000'000;

/// An argument of the model's forward, and the field of a batch that is passed for it.
struct StarterInput {
  std::string argument;
  std::string field;      ///< It is the argument's own name if the data have no such field.
  bool is_guess = false;  ///< Neither a name nor a note says that the argument takes the field.
  /// Whether data that are made of tokens have the field.
  [[nodiscard]] bool is_token() const { return field == "input_ids" || field == "labels"; }
};

/// What a first configuration for a model says, and where it comes from.
struct Starter {
  StarterOptions options;
  std::string class_name;  ///< The class of the model.
  std::int64_t elements = 0;
  std::int64_t trainable = 0;
  std::uint64_t bytes = 0;  ///< Bytes of the parameters as they are stored.
  bool has_values = true;   ///< The file has the values of all parameters.

  std::vector<std::string> layer_classes;  ///< Classes to wrap; empty if nothing in the model repeats.
  bool classes_are_noted = false;          ///< The notes of the model name them; otherwise they are a guess.
  bool is_exported = false;                ///< The model is a program of torch.export.

  std::vector<StarterInput> inputs;
  std::vector<std::string> left_out;  ///< Arguments with a default, which get nothing.
  bool is_own_loss = false;           ///< forward returns the loss.
  bool loss_is_noted = false;         ///< The notes of the model name an output "loss".
  bool shifts_labels = false;
  std::string targets = "labels";          ///< The field that a loss other than the model's compares with.
  bool targets_are_guess = false;          ///< No name says that this field holds labels.
  std::size_t output = 0;                  ///< Which result of forward is meant.
  std::string dtype;                       ///< The dtype of the graph, if the notes name it; else empty.
  bool has_adapter = false;                ///< The notes have the configuration of an adapter of PEFT.
  std::vector<std::string> adapter_names;  ///< Parts of names that the trained parameters of an adapter have.

  const DataFormat* data_format = nullptr;
  std::string data_path;
  std::optional<std::int64_t> vocabulary;
  std::optional<std::int64_t> positions;  ///< The most tokens of a sequence, if a table of positions says it.
  std::int64_t sequence_length = 0;

  [[nodiscard]] bool computes_in_16_bits() const { return !dtype.empty() && dtype != "float32"; }
  /// Copies compute in float32 with autocast, and not in the dtype of such a graph.
  [[nodiscard]] bool is_sharded() const { return elements > kMostCopiedElements || computes_in_16_bits(); }
  /// Whether documents may be packed: positions keep them apart, and a mask of the model's would not.
  [[nodiscard]] bool may_pack() const;
  /// Whether the data have all that an argument needs.
  [[nodiscard]] bool has(const StarterInput& input) const {
    return data_format->has_own_fields ? has_field(input.field) : data_format->makes_field(input.field);
  }
  /// Whether data with fields of their own have this one, as far as that is known.
  [[nodiscard]] bool has_field(const std::string& name) const;
  /// "a, b" for data with fields a and b.
  [[nodiscard]] std::string field_names() const;
};

/// Reads off the model what it says, and guesses the rest. Throws Error as ArchiveModel::structure() and
/// parse_notes() do.
[[nodiscard]] Starter starter_of(const OpenedModel& model, const StarterOptions& options);

/// The format of the data that the user names. Text may have any extension.
[[nodiscard]] const DataFormat& format_of_data(const std::string& path);

/// The configuration as commented YAML, one string a line. `memory` is the memory of a rank, if it is known
/// already. The values do not depend on it.
[[nodiscard]] std::vector<std::string> text_of(const Starter& starter,
                                               const std::optional<MemoryFootprint>& memory);

}  // namespace accel::cli
