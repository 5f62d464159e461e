#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ckpt/tensor/dtype.hpp"
#include "data/files/data_file.hpp"

namespace accel {

/// What the labels of a sample of tokens are: the next tokens, or the inputs themselves, for a model that
/// shifts its labels itself. Labels that the files hold stay as they are.
enum class Labels { kNextTokens, kInputs };

/// The fields of the samples that are made of tokens.
inline constexpr const char* kTokensField = "input_ids";
inline constexpr const char* kLabelsField = "labels";
/// Those that samples of documents have, too. Packed ones have no attention_mask.
inline constexpr const char* kPositionsField = "position_ids";
inline constexpr const char* kAttentionField = "attention_mask";

/// What each sample of a source has under one name.
struct SampleField {
  std::string name;
  ckpt::DType dtype = ckpt::DType::kInt64;
  std::vector<std::int64_t> shape;  ///< The shape in one sample.
  std::size_t bytes = 0;            ///< The number of bytes in one sample.
  /// Why the field cannot be read, as what follows "the column", such as "has texts". Such a field has no
  /// bytes.
  std::string obstacle = {};
};

/// A source of a mixture.
struct MixedSource {
  std::string path;
  std::int64_t samples = 0;  ///< Those of the source.
  std::int64_t taken = 0;    ///< Those of the mixture that are of the source.

  [[nodiscard]] double repeats() const { return static_cast<double>(taken) / static_cast<double>(samples); }
};

/// The samples of training data, by their numbers from 0. Each format (data/formats/data_formats.hpp) has its
/// own source. Order, batches, reading ahead, checks of labels and of files that change are the same for all
/// and are not here.
///
/// Several threads may call the const functions at once, except accept_changes().
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  /// The number of samples.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// How large the data are, for messages: "900 tokens make 28 samples of 32", or "28 samples".
  [[nodiscard]] virtual std::string size_text() const = 0;
  /// What of the data no sample has, as a sentence for a warning. Empty if nothing is left out.
  [[nodiscard]] virtual std::string left_out() const { return {}; }
  /// The sources of a mixture; empty for other data.
  [[nodiscard]] virtual std::vector<MixedSource> mixed() const { return {}; }
  /// The number of tokens of a sample, or 0 if the configuration does not set it.
  [[nodiscard]] virtual std::int64_t sequence_length() const { return 0; }
  /// What tells the tokenizer of the tokens from others. Empty if the files do not say it.
  [[nodiscard]] virtual std::string tokenizer() const { return {}; }
  [[nodiscard]] virtual const std::vector<SampleField>& fields() const = 0;
  /// How many tokens of a sample are before the padding at its end.
  [[nodiscard]] virtual std::int64_t length(std::int64_t /*sample*/) const { return sequence_length(); }
  /// Fills out[i] with the bytes of field i of a sample. An empty span is a field that is not wanted. Spans
  /// of documents may be shorter than the field, and get its first bytes. A file
  /// that has become too short, and a token that is not in the vocabulary, are Errors of kind kUsage that
  /// name the file.
  virtual void read(std::int64_t sample, Labels labels, std::span<const std::span<std::byte>> out) const = 0;
  /// Makes read() refuse values of these fields that are not below the numbers of tokens. Numbers that the
  /// format cannot be meant for are an Error of kind kUsage.
  virtual void set_vocabularies(std::map<std::string, std::int64_t> tokens) = 0;
  /// Says where a sample is, for messages.
  [[nodiscard]] virtual std::string position(std::int64_t sample) const = 0;
  /// The files that hold a sample.
  [[nodiscard]] virtual std::vector<const DataFile*> files_of(std::int64_t sample) const = 0;
  /// Makes DataFile::change() of every file compare with its present state.
  virtual void accept_changes() const = 0;
  /// A CRC-32 of a part of the data, as data/formats/fingerprint.hpp takes it.
  [[nodiscard]] virtual std::uint32_t fingerprint() const = 0;
};

}  // namespace accel
