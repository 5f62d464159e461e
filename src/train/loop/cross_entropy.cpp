#include "train/loop/cross_entropy.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "base/error.hpp"

namespace accel::train {
namespace {

/// Returns the bytes of the float32 logits that are processed at a time. On the CPU they fit a core's cache,
/// for each thread. On CUDA they are enough to be worth a kernel's launch.
std::int64_t chunk_bytes(const at::Tensor& logits) {
  if (!logits.device().is_cpu()) return std::int64_t{64} << 20;
  return at::get_num_threads() * (std::int64_t{256} << 10);
}

/// Goes through the logits some rows at a time, with a buffer for their log-probabilities.
class Chunks {
 public:
  explicit Chunks(const at::Tensor& logits)
      : logits_(logits),
        dtype_(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
        rows_(std::clamp<std::int64_t>(chunk_bytes(logits) / std::max<std::int64_t>(1, logits.size(1) * 4), 1,
                                       std::max<std::int64_t>(1, logits.size(0)))),
        log_probabilities_(at::empty({rows_, logits.size(1)}, logits.options().dtype(dtype_))) {}

  /// Calls `use` with the first row, the number of rows and the log-probabilities of these rows.
  template <class Use>
  void for_each(Use&& use) {
    for (std::int64_t first = 0; first < logits_.size(0); first += rows_) {
      const std::int64_t rows = std::min(rows_, logits_.size(0) - first);
      at::Tensor logarithms = log_probabilities_.narrow(0, 0, rows);
      // Logits in 16 bits are converted into a temporary tensor of these rows.
      at::_log_softmax_out(logarithms, logits_.narrow(0, first, rows).to(dtype_), 1, /*half_to_float=*/false);
      use(first, rows, logarithms);
    }
  }

  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  [[nodiscard]] at::Tensor empty_like_chunk() const { return at::empty_like(log_probabilities_); }

 private:
  const at::Tensor& logits_;
  at::ScalarType dtype_;
  std::int64_t rows_;
  at::Tensor log_probabilities_;
};

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets) {
    Chunks chunks(logits);
    // The log-probability of each row's target, as logits of a single class.
    const at::Tensor ignored = targets.eq(kIgnoredTarget);
    const at::Tensor columns = targets.masked_fill(ignored, 0).unsqueeze(1);
    const at::Tensor picked = at::empty({logits.size(0), 1}, logits.options().dtype(chunks.dtype()));
    chunks.for_each([&](std::int64_t first, std::int64_t rows, const at::Tensor& logarithms) {
      at::Tensor target = picked.narrow(0, first, rows);
      at::gather_out(target, logarithms, 1, columns.narrow(0, first, rows));
    });
    const at::Tensor only_class = at::zeros_like(targets).masked_fill_(ignored, kIgnoredTarget);
    const auto [loss, counted] =
        at::nll_loss_forward(picked, only_class, /*weight=*/{}, at::Reduction::Mean, kIgnoredTarget);
    context->save_for_backward({logits, targets, counted});
    return loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& logits = saved[0];
    const at::Tensor& targets = saved[1];
    Chunks chunks(logits);
    at::Tensor result = at::empty(logits.sizes(), logits.options());
    const at::Tensor log_gradients = chunks.empty_like_chunk();
    const at::Tensor logit_gradients =
        result.scalar_type() == chunks.dtype() ? at::Tensor() : chunks.empty_like_chunk();
    chunks.for_each([&](std::int64_t first, std::int64_t rows, const at::Tensor& logarithms) {
      at::Tensor outer = log_gradients.narrow(0, 0, rows);
      at::nll_loss_backward_out(outer, gradients[0], logarithms, targets.narrow(0, first, rows),
                                /*weight=*/{}, at::Reduction::Mean, kIgnoredTarget, saved[2]);
      at::Tensor target = result.narrow(0, first, rows);
      at::Tensor inner = logit_gradients.defined() ? logit_gradients.narrow(0, 0, rows) : target;
      at::_log_softmax_backward_data_out(inner, outer, logarithms, 1, chunks.dtype());
      if (logit_gradients.defined()) target.copy_(inner);
    });
    return {result, {}};
  }
};

}  // namespace

std::optional<std::int64_t> wrong_class(const at::Tensor& targets, std::int64_t classes) {
  if (!targets.device().is_cpu() || targets.numel() == 0) return std::nullopt;
  const at::Tensor wrong =
      targets.ne(kIgnoredTarget).logical_and_(targets.lt(0).logical_or_(targets.ge(classes)));
  if (!wrong.any().item<bool>()) return std::nullopt;
  return targets.masked_select(wrong)[0].item<std::int64_t>();
}

void require_classes(const at::Tensor& targets, std::int64_t classes) {
  const auto wrong = wrong_class(targets, classes);
  if (!wrong) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("the target {} is not a class, of which the model has {}", *wrong, classes))
      .hint(
          "were the tokens made with another vocabulary than the model's? -100 is a target that does not "
          "count");
}

at::Tensor counted_targets(const at::Tensor& targets) {
  const bool is_integer = at::isIntegralType(targets.scalar_type(), /*includeBool=*/false);
  return (is_integer ? targets.to(at::kLong) : targets).ne(kIgnoredTarget);
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  require_classes(targets, logits.size(1));
  return CrossEntropy::apply(logits, targets);
}

}  // namespace accel::train
