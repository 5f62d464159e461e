#include "train/model/checkpoint_weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "ckpt/read/state_root.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "ckpt/tensor/state_path.hpp"

namespace accel::train {
namespace {

constexpr std::size_t kNamed = 5;
/// Bytes that are converted at once.
constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

ckpt::DType dtype_of(const ParameterInfo& parameter) {
  const auto dtype = ckpt::dtype_of_torch_name(parameter.dtype);
  if (!dtype)
    throw Error(ErrorKind::kUsage, fmt::format("parameter '{}' is {}, a dtype that checkpoints do not have",
                                               parameter.fqns.front(), parameter.dtype));
  return *dtype;
}

bool fits(ckpt::DType from, ckpt::DType to) { return from == to || ckpt::can_convert(from, to); }

std::string shortened(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kNamed);
  return fmt::format("{}{}",
                     fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "");
}

}  // namespace

CheckpointWeights::CheckpointWeights(const ModelStructure& structure, const std::filesystem::path& path)
    : found_(ckpt::find_checkpoint(path, ckpt::Want::kModel)),
      checkpoint_(ckpt::open_checkpoint(found_.path)),
      reader_(checkpoint_->directory()) {
  const std::optional<ckpt::PathKey> root = ckpt::state_root(*checkpoint_);
  for (std::size_t i = 0; i < checkpoint_->tensors().size(); ++i) {
    const ckpt::TensorEntry& entry = checkpoint_->tensors()[i];
    if (const auto relative = ckpt::below_root(entry.path, root))
      tensors_.emplace(ckpt::fqn_of(*relative), Tensor{i, entry.shape, entry.dtype});
  }
  std::vector<std::string> missing;
  std::vector<std::string> other;
  for (const ParameterInfo& parameter : structure.parameters) {
    const ckpt::DType dtype = dtype_of(parameter);
    Tensor* found = nullptr;
    Wanted wanted{.tensor = nullptr, .dtype = dtype, .name = {}, .tied = {}};
    for (const std::string& fqn : parameter.fqns) {
      const auto entry = tensors_.find(fqn);
      if (entry == tensors_.end()) continue;
      entry->second.used = true;
      if (found == nullptr) {
        found = &entry->second;
        wanted.name = fqn;
      } else if (entry->second.shape != found->shape || !fits(entry->second.dtype, dtype)) {
        other.push_back(fmt::format("'{}' is {} {}, but it is tied in the model to '{}', which is {} {}", fqn,
                                    ckpt::torch_name(entry->second.dtype),
                                    ckpt::to_string(entry->second.shape), wanted.name,
                                    ckpt::torch_name(found->dtype), ckpt::to_string(found->shape)));
      } else if (entry->second.source != found->source) {
        wanted.tied.emplace_back(fqn, &entry->second);
      }
    }
    if (found == nullptr) {
      missing.push_back(fmt::format("'{}'", parameter.fqns.front()));
    } else if (found->shape != parameter.shape) {
      other.push_back(fmt::format("'{}' is {}, the model's is {}", parameter.fqns.front(),
                                  ckpt::to_string(found->shape), ckpt::to_string(parameter.shape)));
    } else if (!fits(found->dtype, dtype)) {
      other.push_back(fmt::format("'{}' is {}, the model's is {}", parameter.fqns.front(),
                                  ckpt::torch_name(found->dtype), parameter.dtype));
    }
    wanted.tensor = found;
    parameters_.push_back(std::move(wanted));
  }
  if (!other.empty()) {
    throw Error(ErrorKind::kUsage, fmt::format("the weights in '{}' do not fit the model: {}",
                                               checkpoint_->path().string(), shortened(other)));
  }
  if (missing.empty()) return;
  Error error(ErrorKind::kUsage,
              fmt::format("'{}' has no weights for {} of {} parameters: {}", checkpoint_->path().string(),
                          missing.size(), structure.parameters.size(), shortened(missing)));
  const std::vector<std::string> left = unused();
  if (const auto near = nearest(missing.front().substr(1, missing.front().size() - 2), left))
    throw std::move(error).hint(fmt::format("the nearest name there is '{}'", *near));
  if (!left.empty()) throw std::move(error).hint(fmt::format("it has {}", shortened(left)));
  throw std::move(error);
}

std::vector<std::string> CheckpointWeights::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    if (!tensor.used) names.push_back(name);
  }
  return names;
}

std::vector<std::string> CheckpointWeights::warnings() const {
  std::vector<std::string> texts;
  const std::string where = checkpoint_->path().string();
  for (const std::filesystem::path& other : found_.passed_over) {
    texts.push_back(fmt::format("the weights are read from '{}'; '{}' is ignored", where, other.string()));
  }
  if (const auto left = unused(); !left.empty()) {
    texts.push_back(
        fmt::format("'{}': {} of its tensors are not in the model: {}", where, left.size(), shortened(left)));
  }
  if (!missing_buffers_.empty()) {
    texts.push_back(fmt::format("'{}' lacks {} buffers, which keep the values of the model file: {}", where,
                                missing_buffers_.size(), shortened(missing_buffers_)));
  }
  return texts;
}

void CheckpointWeights::read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) {
  const Wanted& wanted = parameters_.at(index);
  read(*wanted.tensor, wanted.dtype, begin, out);
  std::vector<std::byte> same;
  const std::size_t item = ckpt::item_bytes(wanted.dtype);
  for (const auto& [name, tensor] : wanted.tied) {
    for (std::size_t at = 0; at < out.size(); at += same.size()) {
      same.resize(std::min(kBlockBytes, out.size() - at));
      read(*tensor, wanted.dtype, begin + static_cast<std::int64_t>(at / item), same);
      if (std::equal(same.begin(), same.end(), out.begin() + static_cast<std::ptrdiff_t>(at))) continue;
      throw Error(ErrorKind::kUsage, fmt::format("the weights in '{}' do not fit the model: '{}' and '{}' "
                                                 "are tied in the model, but their values "
                                                 "differ in the weights",
                                                 checkpoint_->path().string(), wanted.name, name))
          .hint("export the model without tying them, or leave one of them out of the weights");
    }
  }
}

bool CheckpointWeights::read_buffer(const std::string& name, const std::vector<std::int64_t>& shape,
                                    ckpt::DType dtype, std::span<std::byte> out) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    missing_buffers_.push_back(name);
    return false;
  }
  Tensor& tensor = found->second;
  if (tensor.shape != shape || !fits(tensor.dtype, dtype)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("the weights in '{}' do not fit the model: '{}' is {} {}, the model's is {} {}",
                            checkpoint_->path().string(), name, ckpt::torch_name(tensor.dtype),
                            ckpt::to_string(tensor.shape), ckpt::torch_name(dtype), ckpt::to_string(shape)));
  }
  tensor.used = true;
  read(tensor, dtype, 0, out);
  return true;
}

void CheckpointWeights::read(const Tensor& tensor, ckpt::DType dtype, std::int64_t begin,
                             std::span<std::byte> out) {
  if (located_ != tensor.source) {
    checkpoint_->check_coverage(tensor.source);
    stored_ = checkpoint_->locate(tensor.source);
    located_ = tensor.source;
  }
  const std::size_t item = ckpt::item_bytes(dtype);
  const auto end = begin + static_cast<std::int64_t>(out.size() / item);
  if (tensor.dtype == dtype) return reader_.read_range(stored_, begin, end, out);
  const std::size_t from = ckpt::item_bytes(tensor.dtype);
  const auto block = static_cast<std::int64_t>(kBlockBytes / from);
  std::vector<std::byte> raw;
  for (std::int64_t at = begin; at < end; at += block) {
    const std::int64_t until = std::min(end, at + block);
    raw.resize(static_cast<std::size_t>(until - at) * from);
    reader_.read_range(stored_, at, until, raw);
    ckpt::convert_dtype(tensor.dtype, raw, dtype,
                        out.subspan(static_cast<std::size_t>(at - begin) * item,
                                    static_cast<std::size_t>(until - at) * item));
  }
}

}  // namespace accel::train
