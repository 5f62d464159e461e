#include "train/loop/loss.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "base/error.hpp"
#include "train/loop/cross_entropy.hpp"

namespace accel::train {
namespace {

/// The outputs of a forward, with their names if it returns a dict.
struct Outputs {
  std::vector<c10::IValue> values;
  std::vector<std::string> names;
};

Outputs outputs_of(const c10::IValue& result) {
  Outputs outputs;
  if (result.isTensor()) {
    outputs.values.push_back(result);
  } else if (result.isTuple()) {
    outputs.values = result.toTupleRef().elements().vec();
  } else if (result.isGenericDict() &&
             result.toGenericDict().keyType()->kind() == c10::TypeKind::StringType) {
    for (const auto& entry : result.toGenericDict()) {
      outputs.names.push_back(entry.key().toStringRef());
      outputs.values.push_back(entry.value());
    }
  } else {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("the model's forward returns {}; a tensor, or a tuple or dict of tensors is needed",
                    result.tagKind()));
  }
  return outputs;
}

at::Tensor output_of(const config::ModelConfig& config, const c10::IValue& result) {
  if (result.isTensor() && config.output == "0") return result.toTensor();
  const Outputs outputs = outputs_of(result);
  const auto named = std::find(outputs.names.begin(), outputs.names.end(), config.output);
  std::size_t index = 0;
  while (index < outputs.values.size() && std::to_string(index) != config.output) ++index;
  if (named != outputs.names.end()) index = static_cast<std::size_t>(named - outputs.names.begin());
  if (index < outputs.values.size() && outputs.values[index].isTensor())
    return outputs.values[index].toTensor();
  const std::string what = result.isTensor() ? "one tensor"
                           : outputs.names.empty()
                               ? fmt::format("a tuple of {} elements", outputs.values.size())
                               : fmt::format("a dict of '{}'", fmt::join(outputs.names, "', '"));
  throw Error(ErrorKind::kUsage,
              fmt::format("training.model.output is {}, but forward returns {}{}", config.output, what,
                          index < outputs.values.size() ? ", and that element is not a tensor" : ""));
}

/// Whether logits without their classes are at the places of the targets. A model may flatten all of them.
bool are_of(at::IntArrayRef logits, const at::Tensor& targets) {
  return logits == targets.sizes() || (logits.size() == 1 && logits.front() == targets.numel());
}

}  // namespace

std::vector<c10::IValue> inputs_of(const config::ModelConfig& config, const Batch& batch) {
  std::vector<c10::IValue> inputs;
  for (const std::string& name : config.inputs) inputs.emplace_back(batch.field(name));
  return inputs;
}

at::Tensor loss_of(const config::ModelConfig& config, const c10::IValue& result, const Batch& batch) {
  at::Tensor output = output_of(config, result);
  if (config.loss == "model") {
    if (output.numel() != 1) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("training.model.loss is 'model', but forward returns a tensor of {} "
                              "elements, not a scalar loss",
                              output.numel()));
    }
    return output.reshape({});
  }
  at::Tensor targets = batch.field(config.targets);
  if (targets.scalar_type() == at::kByte) targets = targets.to(at::kLong);
  if (targets.scalar_type() != at::kLong) {
    throw Error(ErrorKind::kUsage, fmt::format("cross_entropy needs classes as targets, but '{}' is of {}",
                                               config.targets, toString(targets.scalar_type())))
        .hint("the targets are whole numbers, from 0 to below the number of classes");
  }
  const std::int64_t classes = output.dim() == 0 ? 0 : output.size(-1);
  if (classes == 0 || !are_of(output.sizes().slice(0, static_cast<std::size_t>(output.dim() - 1)), targets)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("cross_entropy needs logits [..., classes] for targets of shape {}, but forward "
                            "returns shape {}",
                            fmt::streamed(targets.sizes()), fmt::streamed(output.sizes())));
  }
  return cross_entropy(output.reshape({-1, classes}), targets.reshape({-1}));
}

at::Tensor right_labels_of(const config::ModelConfig& config, const c10::IValue& result, const Batch& batch) {
  const at::Tensor classes = output_of(config, result).argmax(-1).reshape({-1});
  const at::Tensor targets = batch.field(config.targets).reshape({-1});
  return classes.eq(targets).logical_and_(counted_targets(targets)).sum();
}

}  // namespace accel::train
