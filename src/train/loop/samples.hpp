#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.hpp"
#include "data/formats/sample_source.hpp"
#include "data/needed_fields.hpp"
#include "preflight/label_meaning.hpp"

namespace accel::train {

/// The input of a model: tensors by name, each with the samples as its first dimension.
struct Batch {
  std::vector<std::pair<std::string, at::Tensor>> fields;
  /// How many labels a cross entropy counts: those that are not -100. Absent if the batch has no labels.
  std::optional<std::int64_t> counted;
  /// The targets in the host's memory, of which labels are counted; undefined without labels.
  at::Tensor host_targets;

  std::vector<std::int64_t> numbers;  ///< Those of its samples in the data, of a training batch.

  /// The tokens of `input_ids` that are not padding, as far as its mask says it; 0 without this field.
  std::int64_t tokens = 0;

  /// Returns the field `name`. For another name the Error of kind kUsage names the fields that exist.
  [[nodiscard]] const at::Tensor& field(const std::string& name) const;
  [[nodiscard]] std::int64_t samples() const { return fields.front().second.size(0); }
};

/// The samples of a data source as a model takes them. Integers other than uint8 become int64. uint8 becomes
/// float32 where is_divided() in data/needed_fields says so, and int64 for an input of a program that is of
/// int64.
class Samples {
 public:
  /// Throws what DataFormat::open() throws, and Error (kUsage) if the data do not have what the model takes.
  static Samples open(const config::DataSource& source, const config::ModelConfig& model);

  [[nodiscard]] const SampleSource& source() const { return *source_; }
  /// Makes batch() refuse values of these inputs that are not below the numbers of tokens. The Error names
  /// the file.
  void set_vocabularies(std::map<std::string, std::int64_t> tokens) {
    source_->set_vocabularies(std::move(tokens));
  }
  /// The first of these samples that has a NaN or a positive infinity in a field that the model takes: where
  /// it is, the field and the value. A negative infinity may be part of a mask.
  [[nodiscard]] std::optional<std::string> nonfinite_input(const std::vector<std::int64_t>& numbers,
                                                           Labels labels) const;
  /// The tokens of these samples that are not padding, for documents, which know it; nothing for others.
  [[nodiscard]] std::optional<std::int64_t> tokens_of(const std::vector<std::int64_t>& numbers) const;
  /// Tells the dtypes of a program's inputs. Without them none is known.
  void set_input_dtypes(InputDtypes dtypes) { input_dtypes_ = std::move(dtypes); }
  /// The names of the fields that training.model.uint8_divisor divides.
  [[nodiscard]] std::vector<std::string> divided() const {
    return divided_fields(*source_, model_, input_dtypes_);
  }
  /// Copies samples to the device. If a file of theirs has changed since it was opened, its fingerprint is
  /// taken again: another one is an Error (kUsage) that names the file. The same one is a warning once.
  [[nodiscard]] Batch batch(const std::vector<std::int64_t>& numbers, Labels labels,
                            at::Device device) const {
    return to_device(read(numbers, labels, device), device);
  }
  /// The first half of batch(): reads the fields that the model takes into the host's memory, as they are
  /// stored. One thread at a time may call it.
  [[nodiscard]] std::vector<at::Tensor> read(const std::vector<std::int64_t>& numbers, Labels labels,
                                             at::Device device) const;
  /// The second half of batch(), which needs nothing of the files.
  [[nodiscard]] Batch to_device(const std::vector<at::Tensor>& read, at::Device device) const;
  void require_meaning_of_labels(Labels labels) const {
    require_targets(model_);
    accel::require_meaning_of_labels(*source_, format_, model_, labels);
  }
  /// Throws Error (kUsage) unless fields that the files hold have the dtypes of another's.
  void require_dtypes_of(const Samples& other) const;

 private:
  Samples(const config::DataSource& source, const config::ModelConfig& model);

  /// The length of a micro-batch of documents that are filled up to a multiple; nothing for that of the
  /// fields.
  [[nodiscard]] std::optional<std::int64_t> padded_length(const std::vector<std::int64_t>& numbers) const;
  /// Looks at the files of a sample again.
  void require_unchanged(std::int64_t number) const;
  [[nodiscard]] const SampleField& used_field(std::size_t i) const { return source_->fields()[used_[i]]; }

  std::string format_;
  bool has_documents_;
  std::unique_ptr<SampleSource> source_;
  config::ModelConfig model_;
  std::int64_t multiple_;  // DataSource::pad_to_multiple_of
  InputDtypes input_dtypes_;
  std::vector<std::size_t> used_;  // The fields that the model takes.
  std::uint32_t opened_fingerprint_ = 0;
  mutable bool is_warned_ = false;  // Whether a change of a file was named.
};

}  // namespace accel::train
