#include "train/loop/samples.hpp"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "data/formats/data_formats.hpp"
#include "train/loop/cross_entropy.hpp"

namespace accel::train {
namespace {

at::ScalarType scalar_type_of(const SampleField& field) {
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
      throw std::logic_error(fmt::format("needed_fields() lets {} pass", ckpt::torch_name(field.dtype)));
  }
}

bool becomes_int64(at::ScalarType dtype) {
  return at::isIntegralType(dtype, /*includeBool=*/false) && dtype != at::kByte && dtype != at::kLong;
}

/// Divides on the device, so that bytes travel to it. The divisor is a tensor there: CUDA multiplies by the
/// reciprocal of a number of the host, which rounds differently than the division.
at::Tensor divided_by(const at::Tensor& bytes, double divisor) {
  return bytes.to(at::kFloat).div_(at::full({}, divisor, bytes.options().dtype(at::kFloat)));
}

/// The elements of `ids` that are not padding. A mask of another shape says which tokens attend to which, and
/// one of floats may be what is added to scores, where 0 is no padding.
std::int64_t count_tokens(const at::Tensor& ids, const at::Tensor& mask) {
  const bool says_padding = mask.defined() && mask.sizes() == ids.sizes() &&
                            at::isIntegralType(mask.scalar_type(), /*includeBool=*/true);
  return says_padding ? at::count_nonzero(mask).item<std::int64_t>() : ids.numel();
}

}  // namespace

const at::Tensor& Batch::field(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& [known, tensor] : fields) {
    if (known == name) return tensor;
    names.push_back(known);
  }
  fail_without_field(name, names);
}

Samples::Samples(const config::DataSource& source, const config::ModelConfig& model)
    : format_(source.format),
      has_documents_(data_format(source.format).has_documents),
      source_(open_data(source)),
      model_(model),
      multiple_(source.pad_to_multiple_of),
      used_(needed_fields(*source_, model)) {
  opened_fingerprint_ = source_->fingerprint();
}

Samples Samples::open(const config::DataSource& source, const config::ModelConfig& model) {
  return {source, model};
}

std::optional<std::int64_t> Samples::tokens_of(const std::vector<std::int64_t>& numbers) const {
  if (!has_documents_) return std::nullopt;
  std::int64_t tokens = 0;
  for (const std::int64_t number : numbers) tokens += source_->length(number);
  return tokens;
}

std::optional<std::string> Samples::nonfinite_input(const std::vector<std::int64_t>& numbers,
                                                    Labels labels) const {
  for (const std::int64_t number : numbers) {
    for (const std::size_t used : used_) {
      const SampleField& field = source_->fields()[used];
      const at::ScalarType dtype = scalar_type_of(field);
      if (!at::isFloatingType(dtype)) continue;
      const at::Tensor values = at::empty(field.shape, at::TensorOptions().dtype(dtype));
      std::vector<std::span<std::byte>> out(source_->fields().size());
      out[used] = {static_cast<std::byte*>(values.mutable_data_ptr()), field.bytes};
      source_->read(number, labels, out);
      const bool has_nan = at::isnan(values).any().item<bool>();
      if (!has_nan && !at::isposinf(values).any().item<bool>()) continue;
      return fmt::format("'{}' of {} has {}", field.name, source_->position(number),
                         has_nan ? "a NaN" : "an infinity");
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> Samples::padded_length(const std::vector<std::int64_t>& numbers) const {
  if (multiple_ == 0) return std::nullopt;
  std::int64_t longest = 1;
  for (const std::int64_t number : numbers) longest = std::max(longest, source_->length(number));
  const std::int64_t all = source_->sequence_length();
  return longest > all - all % multiple_ ? all : (longest + multiple_ - 1) / multiple_ * multiple_;
}

std::vector<at::Tensor> Samples::read(const std::vector<std::int64_t>& numbers, Labels labels,
                                      at::Device device) const {
  std::vector<at::Tensor> tensors;
  std::vector<std::span<std::byte>> out(source_->fields().size());
  const std::optional<std::int64_t> padded = padded_length(numbers);
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const SampleField& field = used_field(i);
    const at::ScalarType dtype = scalar_type_of(field);
    std::vector<std::int64_t> shape = {static_cast<std::int64_t>(numbers.size())};
    shape.insert(shape.end(), field.shape.begin(), field.shape.end());
    if (padded) shape[1] = *padded;
    const std::size_t bytes =
        padded ? static_cast<std::size_t>(*padded) * ckpt::item_bytes(field.dtype) : field.bytes;
    // The copy to an accelerator is from pinned memory, which libtorch does not use again before the copy is
    // done, so that the host does not wait.
    const bool is_pinned = at::isAccelerator(device.type()) && !becomes_int64(dtype);
    tensors.push_back(at::empty(shape, at::TensorOptions().dtype(dtype).pinned_memory(is_pinned)));
    out[used_[i]] = {static_cast<std::byte*>(tensors.back().mutable_data_ptr()), bytes};
  }
  for (const std::int64_t number : numbers) {
    source_->read(number, labels, out);
    for (std::span<std::byte>& field : out) field = {field.data() + field.size(), field.size()};
  }
  for (const std::int64_t number : numbers) require_unchanged(number);
  return tensors;
}

namespace {

/// Targets whose value for one that does not count is -100, like torch's default.
at::Tensor with_usual_ignored(const at::Tensor& targets, const config::ModelConfig& model) {
  constexpr std::int64_t kUsual = -100;
  const bool are_classes =
      model.has_classes() && at::isIntegralType(targets.scalar_type(), /*includeBool=*/false);
  if (!are_classes || model.ignore_index == kUsual) return targets;
  const at::Tensor classes = targets.to(at::kLong);
  return classes.masked_fill(classes.eq(model.ignore_index), kUsual);
}

}  // namespace

Batch Samples::to_device(const std::vector<at::Tensor>& read, at::Device device) const {
  Batch batch;
  at::Tensor ids;
  at::Tensor mask;
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const std::string& name = used_field(i).name;
    at::Tensor tensor = becomes_int64(read[i].scalar_type()) ? read[i].to(at::kLong) : read[i];
    if (name == kTokensField) ids = tensor;
    if (name == kAttentionField) mask = tensor;
    if (name == model_.targets) tensor = with_usual_ignored(tensor, model_);
    if (name == model_.targets) {
      batch.counted = counted_targets(tensor).sum().item<std::int64_t>();
      batch.host_targets = tensor;
    }
    at::Tensor there = tensor.to(device, /*non_blocking=*/true);
    if (there.scalar_type() == at::kByte) {
      const auto input = input_dtypes_.find(name);
      if (is_divided(used_field(i), model_, input_dtypes_)) {
        there = divided_by(there, *model_.uint8_divisor);
      } else if (input != input_dtypes_.end() && input->second == ckpt::DType::kInt64) {
        there = there.to(at::kLong);
      }
    }
    batch.fields.emplace_back(name, std::move(there));
  }
  if (ids.defined()) batch.tokens = count_tokens(ids, mask);
  return batch;
}

void Samples::require_unchanged(std::int64_t number) const {
  for (const DataFile* file : source_->files_of(number)) {
    const auto change = file->change();
    if (!change) continue;
    if (source_->fingerprint() != opened_fingerprint_) throw changed_error(*file, *change);
    source_->accept_changes();  // The fingerprint was that of all files.
    if (!std::exchange(is_warned_, true)) {
      log::warn(
          fmt::format("data file '{}' was touched while the run reads it: {}; what was compared is the same, "
                      "and later changes are named only if it is not",
                      file->path(), *change));
    }
  }
}

void Samples::require_dtypes_of(const Samples& other) const {
  if (!data_format(format_).has_own_fields || !data_format(other.format_).has_own_fields) return;
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const SampleField& mine = used_field(i);
    const SampleField& its = other.used_field(i);
    if (mine.dtype == its.dtype) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is {} in training.data.eval, but {} in training.data.train", mine.name,
                            ckpt::torch_name(mine.dtype), ckpt::torch_name(its.dtype)));
  }
}

}  // namespace accel::train
