#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/config/config.hpp"
#include "data/tensor_table.hpp"
#include "data/token_stream.hpp"

namespace accel::train {

/// What a model gets of some samples: tensors by name, each with the samples as its first dimension. Text and
/// tokens have `input_ids` and `labels`, each int64 [samples, sequence_length].
struct Batch {
  std::vector<std::pair<std::string, at::Tensor>> fields;
  /// How many labels a cross entropy counts: those that are not -100. Absent if the batch has no labels.
  std::optional<std::int64_t> counted;

  /// Returns the field `name`. For another name the Error of kind kUsage names the fields that exist.
  [[nodiscard]] const at::Tensor& field(const std::string& name) const;
  [[nodiscard]] std::int64_t samples() const { return fields.front().second.size(0); }
  /// The number of tokens of `input_ids`. Without this field it is 0.
  [[nodiscard]] std::int64_t tokens() const;
};

/// What the labels of a sample of text or tokens are: the next tokens, or the inputs themselves, for a model
/// that shifts its labels itself. A table has its own labels, which stay as they are.
enum class Labels { kNextTokens, kInputs };

/// The samples of a data source, by their numbers from 0.
///
/// Sample k of text or tokens is the window [k * length, k * length + length] of the stream: the first
/// `length` tokens are input_ids, the last `length` are labels, unless Labels says otherwise. Sample k of a
/// table is row k of those of its tensors that the model takes; integers other than uint8 become int64.
class Samples {
 public:
  /// Throws what TokenStream::open() and TensorTable::open() throw, and Error (kUsage) if the data do not
  /// have what the model takes.
  static Samples open(const config::DataSource& source, const config::ModelConfig& model);

  [[nodiscard]] std::int64_t size() const;
  /// The number of tokens of a sample of text or tokens, and 0 for a table.
  [[nodiscard]] std::int64_t sequence_length() const { return length_; }
  /// How large the data are, for messages: "900 tokens make 28 samples of 32", or "28 samples".
  [[nodiscard]] std::string size_text() const;
  /// Says where a sample is, for messages.
  [[nodiscard]] std::string place_of(std::int64_t number) const;
  /// Makes batch() refuse values of these inputs that are not below the numbers of tokens. The Error names
  /// the file.
  void set_vocabularies(std::map<std::string, std::int64_t> tokens);
  /// Copies samples to the device. If a file of theirs has changed since it was opened, fingerprint() is
  /// taken again: another one is an Error (kUsage) that names the file. The same one is a warning once.
  [[nodiscard]] Batch batch(const std::vector<std::int64_t>& numbers, Labels labels, at::Device device) const;
  /// Throws Error (kUsage) if the labels of a table are not what the loss needs: the tokens of an input
  /// themselves for a cross entropy, which teaches a model to copy, or the next tokens for a model that
  /// shifts its labels itself (Labels::kInputs).
  void require_meaning_of_labels(Labels labels) const;
  /// Throws Error (kUsage) unless the tensors of this table have the dtypes of another's.
  void require_dtypes_of(const Samples& other) const;
  /// What fingerprint_of() says of the data now.
  [[nodiscard]] std::uint32_t fingerprint() const;
  /// The fingerprint that older checkpoints have instead.
  [[nodiscard]] std::uint32_t old_fingerprint() const;

 private:
  Samples(TokenStream stream, std::int64_t length, const config::ModelConfig& model);
  Samples(TensorTable table, const config::ModelConfig& model);

  [[nodiscard]] Batch windows(const TokenStream& stream, const std::vector<std::int64_t>& numbers,
                              Labels labels, at::Device device) const;
  [[nodiscard]] Batch rows(const TensorTable& table, const std::vector<std::int64_t>& numbers,
                           at::Device device) const;
  /// Looks at the files of a sample again.
  void require_unchanged(std::int64_t number) const;
  void require_known(const TensorTable& table, const std::vector<std::int64_t>& numbers,
                     const std::string& name, const at::Tensor& tokens) const;

  std::variant<TokenStream, TensorTable> data_;
  config::ModelConfig model_;
  std::int64_t length_ = 0;
  std::uint32_t opened_fingerprint_ = 0;
  mutable bool is_warned_ = false;                    // Whether a change of a file was named.
  std::vector<std::size_t> used_;                     // The fields of a table that the model takes.
  std::map<std::string, std::int64_t> vocabularies_;  // A table is held against it. A stream knows its own.
};

}  // namespace accel::train
