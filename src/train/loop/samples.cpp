#include "train/loop/samples.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "data/fingerprint.hpp"
#include "train/loop/cross_entropy.hpp"

namespace accel::train {
namespace {

constexpr const char* kTokens = "input_ids";
constexpr const char* kLabels = "labels";

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

at::ScalarType scalar_type_of(const TensorTable::Field& field) {
  switch (field.dtype) {
    case ckpt::DType::kBool:
      return at::kBool;
    case ckpt::DType::kUInt8:
      return at::kByte;
    case ckpt::DType::kInt8:
      return at::kChar;
    case ckpt::DType::kInt16:
      return at::kShort;
    case ckpt::DType::kUInt16:
      return at::kUInt16;
    case ckpt::DType::kInt32:
      return at::kInt;
    case ckpt::DType::kUInt32:
      return at::kUInt32;
    case ckpt::DType::kInt64:
      return at::kLong;
    case ckpt::DType::kFloat16:
      return at::kHalf;
    case ckpt::DType::kBFloat16:
      return at::kBFloat16;
    case ckpt::DType::kFloat32:
      return at::kFloat;
    case ckpt::DType::kFloat64:
      return at::kDouble;
    default:
      throw Error(ErrorKind::kUsage,
                  fmt::format("training data: '{}' is of {}, which no model takes as an input", field.name,
                              ckpt::torch_name(field.dtype)));
  }
}

bool becomes_int64(at::ScalarType dtype) {
  return at::isIntegralType(dtype, /*includeBool=*/false) && dtype != at::kByte && dtype != at::kLong;
}

std::vector<std::int64_t> first_numbers(std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

/// The names of the fields that a training takes.
std::vector<std::string> needed_by(const config::ModelConfig& model) {
  std::vector<std::string> names = model.inputs;
  if (model.loss != "model") names.push_back(model.targets);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

[[noreturn]] void fail_without(const std::string& name, const std::vector<std::string>& fields) {
  throw Error(ErrorKind::kUsage, fmt::format("the data has no field '{}'", name))
      .hint(fmt::format("it has the fields {}", fmt::join(fields, ", ")));
}

bool are_equal_where_counted(const at::Tensor& tokens, const at::Tensor& labels) {
  const at::Tensor counted = counted_targets(labels);
  return counted.any().item<bool>() &&
         at::logical_or(tokens.eq(labels), counted.logical_not()).all().item<bool>();
}

}  // namespace

const at::Tensor& Batch::field(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& [known, tensor] : fields) {
    if (known == name) return tensor;
    names.push_back(known);
  }
  fail_without(name, names);
}

std::int64_t Batch::tokens() const {
  for (const auto& [name, tensor] : fields) {
    if (name == kTokens) return tensor.numel();
  }
  return 0;
}

Samples::Samples(TokenStream stream, std::int64_t length, const config::ModelConfig& model)
    : data_(std::move(stream)), model_(model), length_(length) {
  for (const std::string& name : needed_by(model)) {
    if (name != kTokens && name != kLabels) fail_without(name, {kTokens, kLabels});
  }
}

Samples::Samples(TensorTable table, const config::ModelConfig& model)
    : data_(std::move(table)), model_(model) {
  const auto& fields = std::get<TensorTable>(data_).fields();
  std::vector<std::string> names;
  for (const TensorTable::Field& field : fields) names.push_back(field.name);
  for (const std::string& name : needed_by(model)) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) fail_without(name, names);
    used_.push_back(static_cast<std::size_t>(found - names.begin()));
    (void)scalar_type_of(fields[used_.back()]);
  }
}

Samples Samples::open(const config::DataSource& source, const config::ModelConfig& model) {
  Samples samples = source.format == "tensors"
                        ? Samples(TensorTable::open(source), model)
                        : Samples(TokenStream::open(source), source.sequence_length, model);
  samples.opened_fingerprint_ = samples.fingerprint();
  return samples;
}

std::int64_t Samples::size() const {
  return std::visit(Overloaded{[&](const TokenStream& stream) { return stream.windows(length_); },
                               [](const TensorTable& table) { return table.rows(); }},
                    data_);
}

std::string Samples::size_text() const {
  return std::visit(
      Overloaded{[&](const TokenStream& stream) {
                   return fmt::format("{} tokens make {} samples of {}", stream.size(), size(), length_);
                 },
                 [](const TensorTable& table) { return fmt::format("{} samples", table.rows()); }},
      data_);
}

std::string Samples::place_of(std::int64_t number) const {
  const auto* table = std::get_if<TensorTable>(&data_);
  return table != nullptr ? table->place_of(number) : fmt::format("sample {}", number);
}

void Samples::set_vocabularies(std::map<std::string, std::int64_t> tokens) {
  vocabularies_ = std::move(tokens);
  const auto found = vocabularies_.find(kTokens);
  auto* stream = std::get_if<TokenStream>(&data_);
  if (stream != nullptr && found != vocabularies_.end()) stream->set_vocabulary(found->second);
}

Batch Samples::batch(const std::vector<std::int64_t>& numbers, Labels labels, at::Device device) const {
  Batch batch = std::visit(
      Overloaded{[&](const TokenStream& stream) { return windows(stream, numbers, labels, device); },
                 [&](const TensorTable& table) { return rows(table, numbers, device); }},
      data_);
  for (const std::int64_t number : numbers) require_unchanged(number);
  return batch;
}

void Samples::require_unchanged(std::int64_t number) const {
  const auto examine = [&](const DataFile& file) {
    const auto change = file.change();
    if (!change) return;
    if (fingerprint() != opened_fingerprint_) throw changed_error(file, *change);
    // It was that of all files.
    std::visit([](const auto& data) { data.accept_changes(); }, data_);
    if (!std::exchange(is_warned_, true)) {
      log::warn(
          fmt::format("data file '{}' was touched while the run reads it: {}; what was compared is the same, "
                      "and later changes are named only if it is not",
                      file.path(), *change));
    }
  };
  std::visit(Overloaded{[&](const TokenStream& stream) {
                          for (const DataFile* file : stream.files_of(number * length_, length_ + 1))
                            examine(*file);
                        },
                        [&](const TensorTable& table) { examine(table.file_of(number)); }},
             data_);
}

Batch Samples::windows(const TokenStream& stream, const std::vector<std::int64_t>& numbers, Labels labels,
                       at::Device device) const {
  const auto count = static_cast<std::int64_t>(numbers.size());
  // One copy moves inputs and labels to the device. It is from pinned memory, which libtorch does not use
  // again before the copy is done, so that the host does not wait.
  const auto options = at::TensorOptions().dtype(at::kLong).pinned_memory(device.is_cuda());
  const at::Tensor tokens = at::empty({count, length_ + 1}, options);
  auto* data = tokens.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < count; ++row) {
    stream.read(numbers[static_cast<std::size_t>(row)] * length_,
                {data + row * (length_ + 1), static_cast<std::size_t>(length_ + 1)});
  }
  const at::Tensor there = tokens.to(device, /*non_blocking=*/true);
  // The two share no memory: a model may change its labels in place.
  const auto part = [&](std::int64_t begin) {
    return there.narrow(1, begin, length_).clone(at::MemoryFormat::Contiguous);
  };
  return {{{kTokens, part(0)}, {kLabels, part(labels == Labels::kInputs ? 0 : 1)}}, count * length_};
}

Batch Samples::rows(const TensorTable& table, const std::vector<std::int64_t>& numbers,
                    at::Device device) const {
  Batch batch;
  for (const std::size_t i : used_) {
    const TensorTable::Field& field = table.fields()[i];
    const at::ScalarType dtype = scalar_type_of(field);
    std::vector<std::int64_t> shape = {static_cast<std::int64_t>(numbers.size())};
    shape.insert(shape.end(), field.row_shape.begin(), field.row_shape.end());
    const bool is_pinned = device.is_cuda() && !becomes_int64(dtype);
    at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(dtype).pinned_memory(is_pinned));
    auto* to = static_cast<std::byte*>(tensor.mutable_data_ptr());
    for (const std::int64_t number : numbers) {
      table.read(i, number, 0, {to, field.row_bytes});
      to += field.row_bytes;
    }
    if (becomes_int64(dtype)) tensor = tensor.to(at::kLong);
    if (vocabularies_.contains(field.name) && tensor.scalar_type() == at::kLong)
      require_known(table, numbers, field.name, tensor);
    if (field.name == model_.targets) batch.counted = counted_targets(tensor).sum().item<std::int64_t>();
    batch.fields.emplace_back(field.name, tensor.to(device, /*non_blocking=*/true));
  }
  return batch;
}

void Samples::require_known(const TensorTable& table, const std::vector<std::int64_t>& numbers,
                            const std::string& name, const at::Tensor& tokens) const {
  const std::int64_t most = vocabularies_.at(name);
  const std::span<const std::int64_t> all(tokens.const_data_ptr<std::int64_t>(),
                                          static_cast<std::size_t>(tokens.numel()));
  const auto wrong = std::find_if(all.begin(), all.end(), [&](std::int64_t t) { return t < 0 || t >= most; });
  if (wrong == all.end()) return;
  const std::size_t sample = static_cast<std::size_t>(wrong - all.begin()) / (all.size() / numbers.size());
  throw Error(ErrorKind::kUsage,
              fmt::format("{}: token {} of '{}' is not in the model's vocabulary of {} tokens",
                          table.place_of(numbers[sample]), *wrong, name, most))
      .hint("was the data made with another tokenizer than the model's?");
}

void Samples::require_meaning_of_labels(Labels labels) const {
  constexpr std::int64_t kLooked = 16;
  constexpr const char* kDecoded = "decoder_input_ids";
  const auto* table = std::get_if<TensorTable>(&data_);
  const bool is_compared = model_.loss == "cross_entropy";
  if (table == nullptr || (!is_compared && labels != Labels::kInputs)) return;
  const Batch batch = rows(*table, first_numbers(std::min(kLooked, size())), at::kCPU);
  const auto is_there = [&](const std::string& name) {
    return std::any_of(batch.fields.begin(), batch.fields.end(),
                       [&](const auto& f) { return f.first == name; });
  };
  if (!is_there(model_.targets)) return;
  const at::Tensor& targets = batch.field(model_.targets);
  for (const auto& [name, tokens] : batch.fields) {
    const bool may_be_copied = name != model_.targets && (!is_there(kDecoded) || name == kDecoded) &&
                               at::isIntegralType(tokens.scalar_type(), false) && tokens.dim() >= 2 &&
                               tokens.size(1) >= 2 && tokens.sizes() == targets.sizes();
    if (!may_be_copied) continue;
    if (is_compared && are_equal_where_counted(tokens, targets)) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("training data: '{}' are the tokens of '{}' themselves, and cross_entropy "
                              "compares the output of each place with the label of the same place",
                              model_.targets, name))
          .hint(
              "for a language model, write the next token as the label of each, and -100 for the last, or "
              "use a model that shifts its labels and computes its loss itself: training.model.loss: model; "
              "if the labels are meant to be so, training.data.check_labels: false takes them");
    }
    const std::int64_t last = tokens.size(1) - 1;
    if (!is_compared && are_equal_where_counted(tokens.narrow(1, 1, last), targets.narrow(1, 0, last))) {
      throw Error(
          ErrorKind::kUsage,
          fmt::format("training data: '{}' are the next tokens of '{}', but the model shifts its labels "
                      "itself, as its notes say",
                      model_.targets, name))
          .hint(
              "write the token itself as its label, and -100 for those that do not count; if the labels are "
              "meant to be so, training.data.check_labels: false takes them");
    }
  }
}

void Samples::require_dtypes_of(const Samples& other) const {
  const auto* table = std::get_if<TensorTable>(&data_);
  const auto* first = std::get_if<TensorTable>(&other.data_);
  if (table == nullptr || first == nullptr) return;
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const TensorTable::Field& mine = table->fields()[used_[i]];
    const TensorTable::Field& its = first->fields()[other.used_[i]];
    if (mine.dtype == its.dtype) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is {} in training.data.eval, but {} in training.data.train", mine.name,
                            ckpt::torch_name(mine.dtype), ckpt::torch_name(its.dtype)));
  }
}

std::uint32_t Samples::fingerprint() const {
  return std::visit([](const auto& data) { return fingerprint_of(data); }, data_);
}

std::uint32_t Samples::old_fingerprint() const {
  return std::visit([](const auto& data) { return old_fingerprint_of(data); }, data_);
}

}  // namespace accel::train
