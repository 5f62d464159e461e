#include "preflight/label_meaning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "data/files/integers.hpp"
#include "data/formats/data_formats.hpp"
#include "data/needed_fields.hpp"

namespace accel {
namespace {

constexpr std::int64_t kLooked = 16;
constexpr const char* kDecoded = "decoder_input_ids";

using Integers = std::vector<std::int64_t>;

/// Whether a sample has a label that counts, and each of them is the token at its place. The tokens begin
/// `shift` elements behind the labels.
bool are_equal_where_counted(std::span<const std::int64_t> tokens, std::span<const std::int64_t> labels,
                             std::int64_t ignored, std::size_t shift, bool& counts) {
  for (std::size_t i = 0; i + shift < tokens.size(); ++i) {
    if (labels[i] == kIgnored || labels[i] == ignored) continue;
    counts = true;
    if (labels[i] != tokens[i + shift]) return false;
  }
  return true;
}

/// Whether that holds for the first samples together.
bool are_equal(const std::vector<Integers>& tokens, const std::vector<Integers>& labels, std::int64_t ignored,
               std::size_t shift) {
  bool counts = false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!are_equal_where_counted(tokens[i], labels[i], ignored, shift, counts)) return false;
  }
  return counts;
}

std::vector<Integers> first_samples(const SampleSource& source, std::size_t number, Labels labels) {
  const SampleField& field = source.fields()[number];
  std::vector<std::byte> bytes(field.bytes);
  std::vector<std::span<std::byte>> out(source.fields().size());
  out[number] = bytes;
  std::vector<Integers> samples;
  for (std::int64_t i = 0; i < std::min(kLooked, source.size()); ++i) {
    source.read(i, labels, out);
    samples.push_back(integers_of(bytes, field.dtype));
  }
  return samples;
}

bool is_integer(const SampleField& field) {
  return !ckpt::is_floating(field.dtype) && field.dtype != ckpt::DType::kBool;
}

}  // namespace

std::vector<std::int64_t> integers_of(std::span<const std::byte> bytes, ckpt::DType dtype) {
  const std::size_t item = ckpt::item_bytes(dtype);
  const bool is_signed = dtype == ckpt::DType::kInt8 || dtype == ckpt::DType::kInt16 ||
                         dtype == ckpt::DType::kInt32 || dtype == ckpt::DType::kInt64;
  Integers integers(bytes.size() / item);
  read_integers(bytes.data(), item, is_signed, integers);
  return integers;
}

void require_meaning_of_labels(const SampleSource& source, const std::string& format,
                               const config::ModelConfig& model, Labels labels) {
  const bool is_compared = model.has_classes();
  if (!data_format(format).has_own_fields || (!is_compared && labels != Labels::kInputs)) return;
  const std::vector<std::size_t> used = needed_fields(source, model);
  const auto found = [&](const std::string& name) -> std::optional<std::size_t> {
    const auto its = std::find_if(used.begin(), used.end(),
                                  [&](std::size_t field) { return source.fields()[field].name == name; });
    return its == used.end() ? std::nullopt : std::optional(*its);
  };
  const auto targets = found(model.targets);
  if (!targets || !is_integer(source.fields()[*targets])) return;
  const SampleField& target = source.fields()[*targets];
  std::vector<Integers> label_values;
  for (const std::size_t number : used) {
    const SampleField& field = source.fields()[number];
    const bool may_be_copied = number != *targets && (!found(kDecoded) || field.name == kDecoded) &&
                               is_integer(field) && !is_divided(field, model, {}) && !field.shape.empty() &&
                               field.shape.front() >= 2 && field.shape == target.shape;
    if (!may_be_copied) continue;
    if (label_values.empty()) label_values = first_samples(source, *targets, labels);
    const std::vector<Integers> tokens = first_samples(source, number, labels);
    if (is_compared && are_equal(tokens, label_values, model.ignore_index, 0)) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("training data: '{}' are the tokens of '{}' themselves, and cross_entropy "
                              "compares the output of each place with the label of the same place",
                              model.targets, field.name))
          .hint(
              "for a language model, write the next token as the label of each, and -100 for the last, as "
              "format: documents does with datasets on disk, or use a model that shifts its labels and "
              "computes its loss itself: training.model.loss: model; if the labels are meant to be so, "
              "training.data.check_labels: false takes them");
    }
    const auto row = static_cast<std::size_t>(checked_numel(field.shape) / field.shape.front());
    if (!is_compared && are_equal(tokens, label_values, kIgnored, row)) {
      throw Error(
          ErrorKind::kUsage,
          fmt::format("training data: '{}' are the next tokens of '{}', but the model shifts its labels "
                      "itself, as its notes say",
                      model.targets, field.name))
          .hint(
              "write the token itself as its label, and -100 for those that do not count; if the labels are "
              "meant to be so, training.data.check_labels: false takes them");
    }
  }
}

}  // namespace accel
