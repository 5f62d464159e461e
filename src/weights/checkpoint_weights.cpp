#include "weights/checkpoint_weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/name_pattern.hpp"
#include "base/text.hpp"
#include "ckpt/read/converted_checkpoint.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/tensor/state_path.hpp"

namespace accel {
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

/// The names that PEFT may have given a trained parameter in the checkpoint. Those of other parameters of the
/// model are not among them.
std::vector<std::string> adapter_names_of(const ParameterInfo& parameter, const std::set<std::string>& fqns) {
  std::vector<std::string> names;
  if (!parameter.requires_grad) return names;
  for (const std::string& fqn : parameter.fqns) {
    std::string name = ckpt::adapter_file_name(fqn);
    if (!fqns.contains(name)) names.push_back(std::move(name));
  }
  return names;
}

/// All names of all parameters.
std::set<std::string> fqns_of(const ModelStructure& structure) {
  std::set<std::string> fqns;
  for (const ParameterInfo& parameter : structure.parameters)
    fqns.insert(parameter.fqns.begin(), parameter.fqns.end());
  return fqns;
}

/// The checkpoint with its tensors under the names of the model.
std::unique_ptr<ckpt::Checkpoint> open_with_names(const std::filesystem::path& path,
                                                  const WeightNames& names) {
  std::unique_ptr<ckpt::Checkpoint> checkpoint = ckpt::open_checkpoint(path);
  std::vector<ckpt::PatternRename> rules;
  for (const auto& [pattern, replacement] : names.rename)
    rules.emplace_back(NamePattern(pattern), replacement);
  try {
    // A statement of its own: a compiler may move the argument `checkpoint` before it computes the other one.
    auto renames =
        ckpt::conversions_by_pattern(ckpt::tensor_names(*checkpoint), rules, "training.model.rename");
    checkpoint = ckpt::convert_tensors(std::move(checkpoint), std::move(renames));
    return ckpt::with_tensors_of_model(std::move(checkpoint), names.conversions);
  } catch (Error& error) {
    error.add_context(fmt::format("the weights in '{}'", path.string()));
    throw;
  }
}

std::string shortened(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kNamed);
  return fmt::format("{}{}",
                     fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "");
}

}  // namespace

CheckpointWeights::CheckpointWeights(const ModelStructure& structure, const std::filesystem::path& path,
                                     Use use, const WeightNames& naming)
    : found_(ckpt::find_checkpoint(path, ckpt::Want::kModel)),
      tensors_(open_with_names(found_.path, naming)),
      use_(use) {
  std::vector<std::string> missing;
  std::vector<std::string> other;
  std::vector<std::string> missing_frozen;
  bool has_frozen = false;
  const std::set<std::string> fqns = fqns_of(structure);
  for (const ParameterInfo& parameter : structure.parameters) {
    const ckpt::DType dtype = dtype_of(parameter);
    const Tensor* found = nullptr;
    Wanted wanted{.tensor = nullptr, .dtype = dtype, .name = {}, .tied = {}};
    std::vector<std::string> names = parameter.fqns;
    const auto is_there = [&](const std::string& name) { return tensors_.find(name) != nullptr; };
    if (use != Use::kBegin && std::none_of(names.begin(), names.end(), is_there))
      names = adapter_names_of(parameter, fqns);
    for (const std::string& fqn : names) {
      const Tensor* entry = tensors_.find(fqn);
      if (entry == nullptr) continue;
      if (found == nullptr) {
        found = entry;
        wanted.name = fqn;
      } else if (entry->shape != found->shape || !can_read_as(entry->dtype, dtype)) {
        other.push_back(fmt::format("'{}' is {} {}, but it is tied in the model to '{}', which is {} {}", fqn,
                                    ckpt::torch_name(entry->dtype), ckpt::to_string(entry->shape),
                                    wanted.name, ckpt::torch_name(found->dtype),
                                    ckpt::to_string(found->shape)));
      } else if (entry->source != found->source) {
        wanted.tied.emplace_back(fqn, entry);
      }
    }
    has_frozen = has_frozen || (found != nullptr && !parameter.requires_grad);
    if (found == nullptr) {
      (parameter.requires_grad ? missing : missing_frozen)
          .push_back(fmt::format("'{}'", parameter.fqns.front()));
    } else if (found->shape != parameter.shape) {
      other.push_back(fmt::format("'{}' is {}, the model's is {}", parameter.fqns.front(),
                                  ckpt::to_string(found->shape), ckpt::to_string(parameter.shape)));
    } else if (!can_read_as(found->dtype, dtype)) {
      other.push_back(fmt::format("'{}' is {}, the model's is {}", parameter.fqns.front(),
                                  ckpt::torch_name(found->dtype), parameter.dtype));
    }
    wanted.tensor = found;
    parameters_.push_back(std::move(wanted));
  }
  // The checkpoint of an adapter has no frozen parameter. One that has some of them has lost the others.
  is_complete_ = missing_frozen.empty();
  if (use == Use::kBegin || has_frozen)
    missing.insert(missing.end(), missing_frozen.begin(), missing_frozen.end());
  if (!other.empty()) {
    throw Error(ErrorKind::kUsage, fmt::format("the weights in '{}' do not fit the model: {}",
                                               tensors_.path().string(), shortened(other)));
  }
  if (missing.empty()) return;
  Error error(ErrorKind::kUsage,
              fmt::format("'{}' has no weights for {} of {} parameters: {}", tensors_.path().string(),
                          missing.size(), structure.parameters.size(), shortened(missing)));
  const std::vector<std::string> left = tensors_.unused();
  if (const auto near = nearest(missing.front().substr(1, missing.front().size() - 2), left))
    throw std::move(error).hint(fmt::format("the nearest name there is '{}'", *near));
  if (!left.empty()) throw std::move(error).hint(fmt::format("it has {}", shortened(left)));
  throw std::move(error);
}

std::vector<std::string> CheckpointWeights::warnings() const {
  std::vector<std::string> texts;
  const std::string where = tensors_.path().string();
  for (const std::filesystem::path& other : found_.passed_over) {
    texts.push_back(fmt::format("the weights are read from '{}'; '{}' is ignored", where, other.string()));
  }
  if (const auto left = tensors_.unused(); !left.empty()) {
    texts.push_back(
        fmt::format("'{}': {} of its tensors are not in the model: {}", where, left.size(), shortened(left)));
  }
  if (use_ == Use::kBegin && !tensors_.left_out().empty())
    texts.push_back(
        fmt::format("the weights are read from '{}'; left out is {}", where, tensors_.left_out()));
  if (!missing_buffers_.empty()) {
    texts.push_back(fmt::format("'{}' lacks {} buffers, which keep the values of the model file: {}", where,
                                missing_buffers_.size(), shortened(missing_buffers_)));
  }
  return texts;
}

void CheckpointWeights::read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) {
  const Wanted& wanted = parameters_.at(index);
  tensors_.read(*wanted.tensor, wanted.dtype, begin, out);
  std::vector<std::byte> same;
  const std::size_t item = ckpt::item_bytes(wanted.dtype);
  for (const auto& [name, tensor] : wanted.tied) {
    for (std::size_t at = 0; at < out.size(); at += same.size()) {
      same.resize(std::min(kBlockBytes, out.size() - at));
      tensors_.read(*tensor, wanted.dtype, begin + static_cast<std::int64_t>(at / item), same);
      if (std::equal(same.begin(), same.end(), out.begin() + static_cast<std::ptrdiff_t>(at))) continue;
      // A training has written one value under both names.
      const ErrorKind kind = use_ == Use::kBegin ? ErrorKind::kUsage : ErrorKind::kCorrupt;
      throw Error(kind, fmt::format("the weights in '{}' do not fit the model: '{}' and '{}' are tied in the "
                                    "model, but their values differ in the weights",
                                    tensors_.path().string(), wanted.name, name))
          .hint("export the model without tying them, or leave one of them out of the weights");
    }
  }
}

bool CheckpointWeights::read_buffer(const std::string& name, const std::vector<std::int64_t>& shape,
                                    ckpt::DType dtype, std::span<std::byte> out) {
  const Tensor* found = tensors_.find(name);
  if (found == nullptr && use_ == Use::kResume && is_complete_) {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' has no buffer '{}'", tensors_.path().string(), name));
  }
  if (found == nullptr) {
    if (use_ != Use::kResumeAdapter) missing_buffers_.push_back(name);
    return false;
  }
  const Tensor& tensor = *found;
  if (tensor.shape != shape || !can_read_as(tensor.dtype, dtype)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("the weights in '{}' do not fit the model: '{}' is {} {}, the model's is {} {}",
                            tensors_.path().string(), name, ckpt::torch_name(tensor.dtype),
                            ckpt::to_string(tensor.shape), ckpt::torch_name(dtype), ckpt::to_string(shape)));
  }
  tensors_.read(tensor, dtype, 0, out);
  return true;
}

}  // namespace accel
