#include "train/loop/loss.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ostream.h>

#include "base/error.hpp"
#include "train/loop/cross_entropy.hpp"

namespace accel::train {
namespace {

at::Tensor output_of(const config::ModelConfig& config, const c10::IValue& result) {
  if (result.isTensor()) return result.toTensor();
  if (result.isTuple()) {
    const auto& elements = result.toTupleRef().elements();
    const auto index = static_cast<std::size_t>(config.output);
    if (index < elements.size() && elements[index].isTensor()) return elements[index].toTensor();
    throw Error(ErrorKind::kUsage,
                fmt::format("training.model.output is {}, but forward returns a tuple of {} elements{}",
                            config.output, elements.size(),
                            index < elements.size() ? ", and that element is not a tensor" : ""));
  }
  throw Error(ErrorKind::kUsage,
              fmt::format("the model's forward returns {}; a tensor or a tuple of tensors is needed",
                          result.tagKind()));
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
  const at::Tensor& targets = batch.field(config.targets);
  const std::int64_t classes = output.dim() == 0 ? 0 : output.size(-1);
  if (classes == 0 || output.numel() / classes != targets.numel()) {
    throw Error(ErrorKind::kUsage,
                fmt::format("cross_entropy needs logits [..., classes] for {} targets, but forward "
                            "returns shape {}",
                            targets.numel(), fmt::streamed(output.sizes())));
  }
  return cross_entropy(output.reshape({-1, classes}), targets.reshape({-1}));
}

}  // namespace accel::train
