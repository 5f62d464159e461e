#include "data/needed_fields.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "data/formats/data_formats.hpp"

namespace accel {
namespace {

/// The dtypes that tensors of a batch may have.
bool is_input(ckpt::DType dtype) {
  switch (dtype) {
    case ckpt::DType::kBool:
    case ckpt::DType::kUInt8:
    case ckpt::DType::kInt8:
    case ckpt::DType::kInt16:
    case ckpt::DType::kUInt16:
    case ckpt::DType::kInt32:
    case ckpt::DType::kUInt32:
    case ckpt::DType::kInt64:
    case ckpt::DType::kFloat16:
    case ckpt::DType::kBFloat16:
    case ckpt::DType::kFloat32:
    case ckpt::DType::kFloat64:
      return true;
    default:
      return false;
  }
}

}  // namespace

void fail_without_field(const std::string& name, const std::vector<std::string>& fields) {
  throw Error(ErrorKind::kUsage, fmt::format("the data has no field '{}'", name))
      .hint(fmt::format("it has the fields {}", fmt::join(fields, ", ")));
}

void require_targets(const config::ModelConfig& model) {
  const std::string& targets = model.targets;
  const bool is_input = std::find(model.inputs.begin(), model.inputs.end(), targets) != model.inputs.end();
  const bool are_tokens = targets == kTokensField || targets == "decoder_input_ids";
  if (!model.has_classes() || !(is_beside_tokens(targets) || (are_tokens && is_input))) return;
  throw Error(ErrorKind::kUsage, fmt::format("training.model.targets is '{}', which {}", targets,
                                             are_tokens ? "forward gets: it would learn to copy its input"
                                                        : "says something of tokens, and holds no classes"))
      .hint(fmt::format(
          "name the field that holds the labels; rows of tokens without labels are for format: {}, whose "
          "labels are the next tokens; if the targets are meant to be so, training.data.check_labels: false "
          "takes them",
          kDocumentsFormat));
}

std::vector<std::size_t> needed_fields(const SampleSource& source, const config::ModelConfig& model) {
  std::vector<std::string> wanted = model.inputs;
  if (model.loss != "model") wanted.push_back(model.targets);
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  std::vector<std::string> names;
  for (const SampleField& field : source.fields()) names.push_back(field.name);
  std::vector<std::size_t> numbers;
  for (const std::string& name : wanted) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) fail_without_field(name, names);
    const SampleField& field = source.fields()[static_cast<std::size_t>(found - names.begin())];
    if (!field.obstacle.empty()) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("training data: the column '{}' {}, and cannot be a field of samples", name,
                              field.obstacle))
          .hint(
              "rows of tokens that differ in length are for format: documents, which packs or pads them; "
              "accel-export --tokenize makes tokens of texts; dataset.cast_column and dataset.map of the "
              "package datasets make numbers of one shape of the rest");
    }
    if (!is_input(field.dtype)) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("training data: '{}' is of {}, which no model takes as an input", name,
                              ckpt::torch_name(field.dtype)));
    }
    numbers.push_back(static_cast<std::size_t>(found - names.begin()));
  }
  return numbers;
}

bool is_divided(const SampleField& field, const config::ModelConfig& model, const InputDtypes& inputs) {
  if (field.dtype != ckpt::DType::kUInt8 || !model.divides(field.name)) return false;
  const auto input = inputs.find(field.name);
  return input == inputs.end() || ckpt::is_floating(input->second);
}

std::vector<std::string> divided_fields(const SampleSource& source, const config::ModelConfig& model,
                                        const InputDtypes& inputs) {
  std::vector<std::string> names;
  for (const std::size_t number : needed_fields(source, model)) {
    const SampleField& field = source.fields()[number];
    if (is_divided(field, model, inputs)) names.push_back(field.name);
  }
  return names;
}

std::string division_text(const std::vector<std::string>& fields) {
  return fmt::format("training.model.uint8_divisor divides {}",
                     fields.empty() ? "no field" : fmt::format("{}", fmt::join(fields, ", ")));
}

BatchPlan plan_epoch(const SampleSource& source, const config::DataConfig& config, int data_size) {
  const BatchPlan plan{source.size(), config.batch_size, data_size, config.drop_last};
  if (plan.steps() > 0) return plan;
  throw Error(ErrorKind::kUsage,
              fmt::format("training.data.train: {}, but a step of {} processes with batch_size {} needs {}",
                          source.size_text(), data_size, config.batch_size, config.batch_size * data_size))
      .hint("use more data, a smaller batch or sequence, or drop_last: false");
}

}  // namespace accel
