#include "train/loop/model_loss.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <optional>
#include <string>

#include "base/error.hpp"
#include "train/loop/cross_entropy.hpp"
#include "train/loop/linear_cross_entropy.hpp"
#include "train/loop/loss.hpp"

namespace accel::train {
namespace {

/// The targets of a batch for a head. Nothing if they do not fit it: loss_of() says why.
std::optional<HeadTargets> targets_for(const LinearHead& head, const config::ModelConfig& config,
                                       const Batch& batch) {
  const at::Tensor& given = batch.field(config.targets);
  const at::IntArrayRef shape = head.hidden.sizes();
  const bool is_flat = shape.size() == 2 && shape[0] == given.numel();
  if (head.hidden.dim() == 0 || (!is_flat && shape.slice(0, shape.size() - 1) != given.sizes())) return {};
  if (!at::isIntegralType(given.scalar_type(), /*includeBool=*/false)) return {};
  const std::int64_t classes = head.classes();
  const std::size_t weights = config.class_weights.size();
  HeadTargets targets;
  targets.classes = given.to(at::kLong).reshape({-1});
  if (classes == 0 || (weights != 0 && weights != static_cast<std::size_t>(classes))) return {};
  if (wrong_class(targets.classes, classes)) return {};
  targets.counted =
      batch.counted ? *batch.counted : counted_targets(targets.classes).sum().item<std::int64_t>();
  const at::ScalarType dtype = head.hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (weights != 0)
    targets.class_weights = at::tensor(config.class_weights, head.hidden.options().dtype(dtype));
  targets.label_smoothing = config.label_smoothing;
  targets.z_loss = config.z_loss;
  return targets;
}

bool is_worthwhile(const config::ModelConfig& config, const LinearHead& head) {
  if (config.fused_head == "always") return true;
  const std::int64_t rows = head.hidden.numel() / std::max<std::int64_t>(head.hidden.size(-1), 1);
  return rows * head.classes() * 4 > kHeadChunkBytes;
}

/// What the loss of this rank's part of the sequences needs of a batch.
Batch own_part(const SequenceParallel& sequence, const config::ModelConfig& config, const Batch& batch) {
  Batch own = batch;
  for (auto& [name, tensor] : own.fields) {
    if (name == config.targets) tensor = sequence.own_part(tensor, name);
  }
  own.host_targets = sequence.own_part(batch.host_targets, config.targets);
  own.counted = counted_targets(own.host_targets).sum().item<std::int64_t>();
  return own;
}

/// Makes the mean over `own`, one of `parts` parts of `batch`, what ModelLoss says. The parts of a loss
/// without classes weigh alike.
at::Tensor as_part_of_mean(const at::Tensor& loss, const config::ModelConfig& config, const Batch& own,
                           const Batch& batch, int parts) {
  if (!config.has_classes() || *batch.counted == 0) return loss;
  // Without a label that counts the loss is NaN, and its gradient 0.
  if (*own.counted == 0) return loss.masked_fill(at::ones_like(loss, at::kBool), 0);
  return loss * (static_cast<double>(*own.counted) * parts / static_cast<double>(*batch.counted));
}

/// Runs forward on `batch`, and compares its result with the targets of `own`.
ModelLoss loss_of_forward(ShardedModel& model, const config::ModelConfig& config, const Batch& batch,
                          const Batch& own) {
  std::optional<HeadLoss> fused;
  HeadFunction head;
  if (model.head().is_found()) {
    head = [&](const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) -> at::Tensor {
      LinearHead linear = {hidden, weight, bias, model.head_ranks()};
      const auto targets = is_worthwhile(config, linear) ? targets_for(linear, config, own) : std::nullopt;
      if (!targets) return {};
      linear.hidden = hidden.reshape({-1, hidden.size(-1)});
      fused = linear_cross_entropy(linear, *targets);
      return fused->loss;
    };
  }
  const c10::IValue result = model.forward(inputs_of(config, batch), head);
  // A model may return a scalar in training only.
  const at::Tensor metrics = at::GradMode::is_enabled() ? metrics_of(config, result) : at::Tensor();
  if (fused) return {output_of(config, result), fused->right, fused->nll, metrics};
  ModelLoss loss{loss_of(config, result, own), {}, {}, metrics};
  if (!config.has_classes() || at::GradMode::is_enabled()) return loss;
  loss.right = right_labels_of(config, result, own);
  config::ModelConfig plain = config;
  plain.class_weights.clear();
  plain.label_smoothing = plain.z_loss = 0;
  const bool is_plain = config.class_weights.empty() && config.label_smoothing == 0 && config.z_loss == 0;
  loss.nll = is_plain ? loss.loss : loss_of(plain, result, own);
  return loss;
}

}  // namespace

ModelLoss forward_loss(ShardedModel& model, const config::ModelConfig& config, const Batch& batch) {
  const SequenceParallel* sequence = model.sequence();
  if (sequence == nullptr) return loss_of_forward(model, config, batch, batch);
  const Batch own = own_part(*sequence, config, batch);
  ModelLoss loss = loss_of_forward(model, config, batch, own);
  loss.loss = as_part_of_mean(loss.loss, config, own, batch, sequence->size());
  if (loss.nll.defined()) loss.nll = as_part_of_mean(loss.nll, config, own, batch, sequence->size());
  if (loss.right.defined()) loss.right = loss.right * sequence->size();
  return loss;
}

void compare_parts(ShardedModel& model, const config::ModelConfig& config, const Batch& batch) {
  model.compare_parts(inputs_of(config, batch),
                      [&](const c10::IValue& result) { return output_of(config, result); });
}

void require_head(const config::ModelConfig& config, const FoundHead& head) {
  if (config.fused_head != "always" || head.is_found()) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("training.model.fused_head is always, but output {} of the model is not that of a "
                          "linear: {}",
                          config.output, head.missing))
      .hint("auto and never take the logits as the model computes them");
}

}  // namespace accel::train
