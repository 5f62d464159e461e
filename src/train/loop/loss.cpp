#include "train/loop/loss.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

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

/// The output `wanted`, an index or a name, which is the value of `setting`.
at::Tensor output_named(const std::string& wanted, std::string_view setting, const c10::IValue& result) {
  if (result.isTensor() && wanted == "0") return result.toTensor();
  const Outputs outputs = outputs_of(result);
  const auto named = std::find(outputs.names.begin(), outputs.names.end(), wanted);
  std::size_t index = 0;
  while (index < outputs.values.size() && std::to_string(index) != wanted) ++index;
  if (named != outputs.names.end()) index = static_cast<std::size_t>(named - outputs.names.begin());
  if (index < outputs.values.size() && outputs.values[index].isTensor())
    return outputs.values[index].toTensor();
  const std::string what = result.isTensor() ? "one tensor"
                           : outputs.names.empty()
                               ? fmt::format("a tuple of {} elements", outputs.values.size())
                               : fmt::format("a dict of '{}'", fmt::join(outputs.names, "', '"));
  throw Error(ErrorKind::kUsage,
              fmt::format("{} is {}, but forward returns {}{}", setting, wanted, what,
                          index < outputs.values.size() ? ", and that element is not a tensor" : ""));
}

/// Whether logits without their classes are at the places of the targets. A model may flatten all of them.
bool are_of(at::IntArrayRef logits, const at::Tensor& targets) {
  return logits == targets.sizes() || (logits.size() == 1 && logits.front() == targets.numel());
}

/// A loss between an output and targets, of equal shapes unless the targets are classes.
struct Loss {
  std::string_view name;
  at::Tensor (*function)(const config::ModelConfig& config, const at::Tensor& output,
                         const at::Tensor& targets);
};

/// The weights of the classes of `output` [n, classes]; undefined if all weigh alike.
at::Tensor class_weights_of(const config::ModelConfig& config, const at::Tensor& output) {
  if (config.class_weights.empty()) return {};
  if (static_cast<std::int64_t>(config.class_weights.size()) != output.size(1)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("training.model.class_weights has {} weights, and the model has {} classes",
                            config.class_weights.size(), output.size(1)));
  }
  return at::tensor(config.class_weights, output.options());
}

at::Tensor cross_entropy_of(const config::ModelConfig& config, const at::Tensor& logits,
                            const at::Tensor& targets) {
  const bool is_plain = config.class_weights.empty() && config.label_smoothing == 0 && config.z_loss == 0;
  if (is_plain) return cross_entropy(logits, targets);
  require_classes(targets, logits.size(1));
  const at::Tensor values = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  at::Tensor loss = at::cross_entropy_loss(values, targets, class_weights_of(config, values),
                                           at::Reduction::Mean, kIgnoredTarget, config.label_smoothing);
  if (config.z_loss == 0) return loss;
  // Where no label counts the gradient is 0, as that of the cross entropy.
  const at::Tensor counted = counted_targets(targets);
  const at::Tensor squares = values.logsumexp(1).square().masked_fill(counted.logical_not(), 0);
  return loss + squares.sum() / counted.sum() * config.z_loss;
}

at::Tensor nll_of(const config::ModelConfig& config, const at::Tensor& logarithms,
                  const at::Tensor& targets) {
  require_classes(targets, logarithms.size(1));
  const at::Tensor values = logarithms.scalar_type() == at::kDouble ? logarithms : logarithms.to(at::kFloat);
  return at::nll_loss(values, targets, class_weights_of(config, values), at::Reduction::Mean, kIgnoredTarget);
}

constexpr std::array kLosses = {
    Loss{"cross_entropy", cross_entropy_of},
    Loss{"nll", nll_of},
    Loss{"mse", [](const auto& /*config*/, const auto& output,
                   const auto& targets) { return at::mse_loss(output, targets); }},
    Loss{"l1", [](const auto& /*config*/, const auto& output,
                  const auto& targets) { return at::l1_loss(output, targets); }},
    Loss{"smooth_l1", [](const auto& /*config*/, const auto& output,
                         const auto& targets) { return at::smooth_l1_loss(output, targets); }},
    Loss{"bce_with_logits",
         [](const auto& /*config*/, const auto& output, const auto& targets) {
           return at::binary_cross_entropy_with_logits(output, targets, {}, {}, at::Reduction::Mean);
         }},
};

/// The loss of an output [..., classes] and targets [...] that are numbers of classes.
at::Tensor loss_of_classes(const Loss& loss, const config::ModelConfig& config, const at::Tensor& output,
                           const at::Tensor& targets) {
  const at::Tensor labels = targets.scalar_type() == at::kByte ? targets.to(at::kLong) : targets;
  if (labels.scalar_type() != at::kLong) {
    throw Error(ErrorKind::kUsage, fmt::format("{} needs classes as targets, but '{}' is of {}", loss.name,
                                               config.targets, toString(labels.scalar_type())))
        .hint("the targets are whole numbers, from 0 to below the number of classes");
  }
  const std::int64_t classes = output.dim() == 0 ? 0 : output.size(-1);
  if (classes == 0 || !are_of(output.sizes().slice(0, static_cast<std::size_t>(output.dim() - 1)), labels)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{} needs logits [..., classes] for targets of shape {}, but forward returns "
                            "shape {}",
                            loss.name, fmt::streamed(labels.sizes()), fmt::streamed(output.sizes())));
  }
  return loss.function(config, output.reshape({-1, classes}), labels.reshape({-1}));
}

/// The loss of an output and targets of the same shape, in float32. The output may have a last dimension of 1
/// that the targets lack.
at::Tensor loss_of_values(const Loss& loss, const config::ModelConfig& config, const at::Tensor& output,
                          const at::Tensor& targets) {
  const bool has_last = output.dim() == targets.dim() + 1 && output.size(-1) == 1;
  const at::Tensor values = has_last ? output.squeeze(-1) : output;
  if (values.sizes() != targets.sizes()) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{} needs an output of the shape of '{}', which is {}, but forward returns shape {}",
                    loss.name, config.targets, fmt::streamed(targets.sizes()),
                    fmt::streamed(output.sizes())));
  }
  const at::ScalarType dtype = values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return loss.function(config, values.to(dtype), targets.to(dtype));
}

}  // namespace

at::Tensor output_of(const config::ModelConfig& config, const c10::IValue& result) {
  return output_named(config.output, "training.model.output", result);
}

at::Tensor metrics_of(const config::ModelConfig& config, const c10::IValue& result) {
  std::vector<at::Tensor> scalars;
  for (const auto& [name, output] : config.metrics) {
    const std::string setting = "training.model.metrics." + name;
    const at::Tensor value = output_named(output, setting, result);
    if (value.numel() != 1) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("{} is output {}, which has {} elements, and is not a scalar", setting, output,
                              value.numel()));
    }
    scalars.push_back(value.detach().to(at::kDouble).reshape({}));
  }
  return scalars.empty() ? at::Tensor() : at::stack(scalars);
}

std::vector<c10::IValue> inputs_of(const config::ModelConfig& config, const Batch& batch) {
  std::vector<c10::IValue> inputs;
  for (const std::string& name : config.inputs) inputs.emplace_back(batch.field(name));
  return inputs;
}

at::Tensor loss_of(const config::ModelConfig& config, const c10::IValue& result, const Batch& batch) {
  const at::Tensor output = output_of(config, result);
  if (config.loss == "model") {
    if (output.numel() != 1) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("training.model.loss is 'model', but forward returns a tensor of {} "
                              "elements, not a scalar loss",
                              output.numel()));
    }
    return output.reshape({});
  }
  const auto* const row = std::find_if(kLosses.begin(), kLosses.end(),
                                       [&](const Loss& loss) { return loss.name == config.loss; });
  if (row == kLosses.end())
    throw Error(ErrorKind::kUsage, fmt::format("the loss '{}' is not supported", config.loss));
  const at::Tensor& targets = batch.field(config.targets);
  return config.has_classes() ? loss_of_classes(*row, config, output, targets)
                              : loss_of_values(*row, config, output, targets);
}

at::Tensor weight_of_labels(const config::ModelConfig& config, const Batch& batch) {
  const at::Tensor targets = batch.field(config.targets).to(at::kLong).reshape({-1});
  const at::Tensor counted = counted_targets(targets);
  if (config.class_weights.empty()) return counted.sum().to(at::kDouble);
  const at::Tensor weights = at::tensor(config.class_weights, targets.options().dtype(at::kDouble));
  return weights.index_select(0, targets.masked_fill(counted.logical_not(), 0)).mul(counted).sum();
}

at::Tensor right_labels_of(const config::ModelConfig& config, const c10::IValue& result, const Batch& batch) {
  const at::Tensor classes = output_of(config, result).argmax(-1).reshape({-1});
  const at::Tensor targets = batch.field(config.targets).reshape({-1});
  return classes.eq(targets).logical_and_(counted_targets(targets)).sum();
}

}  // namespace accel::train
