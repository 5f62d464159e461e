#include "train/loop/linear_cross_entropy.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "train/device/matrix_products.hpp"
#include "train/loop/cross_entropy.hpp"

namespace accel::train {
namespace {

/// As autocast casts the inputs of aten::linear.
at::Tensor with_autocast(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == at::kDouble) return tensor;
  const at::DeviceType device = tensor.device().type();
  return at::autocast::is_autocast_enabled(device) ? tensor.to(at::autocast::get_autocast_dtype(device))
                                                   : tensor;
}

void add_to(at::Tensor& sum, const at::Tensor& summand) {
  if (sum.defined()) {
    sum.add_(summand);
  } else {
    sum = summand;
  }
}

/// Goes through the rows whose targets count, some at a time, and adds up the loss and the gradients. All
/// sums are those of the rows, which are divided by divisor().
class HeadPass {
 public:
  HeadPass(const LinearHead& head, const HeadTargets& targets, bool has_grad)
      : head_{with_autocast(head.hidden), with_autocast(head.weight), with_autocast(head.bias), head.ranks},
        targets_(targets),
        dtype_(head_.hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
        wants_hidden_(has_grad && head.hidden.requires_grad()),
        wants_weight_(has_grad && head.weight.requires_grad()),
        wants_bias_(has_grad && head.bias.defined() && head.bias.requires_grad()),
        counts_right_(!has_grad),
        is_wide_(at::isReducedFloatingType(head_.hidden.scalar_type()) &&
                 multiplies_to_float32(head_.hidden)) {}

  void run(std::int64_t chunk_bytes) {
    const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
    const std::int64_t all = targets_.classes.size(0);
    if (targets_.counted < all) {
      rows_ = at::nonzero_static(counted_targets(targets_.classes), targets_.counted).squeeze(1);
    }
    const at::TensorOptions numbers = head_.hidden.options().dtype(at::kDouble);
    loss_ = at::zeros({}, numbers);
    right_ = at::zeros({}, numbers.dtype(at::kLong));
    nll_ = at::zeros({}, numbers);
    divisor_ = targets_.class_weights.defined()
                   ? targets_.class_weights.index_select(0, of_rows(targets_.classes, 0, targets_.counted))
                         .sum()
                         .to(at::kDouble)
                   : at::full({}, targets_.counted, numbers);
    own_weights_ = targets_.class_weights;
    if (own_weights_.defined() && head_.ranks != nullptr)
      own_weights_ = own_weights_.chunk(head_.ranks->size())[static_cast<std::size_t>(head_.ranks->rank())];
    z_factor_ = (divisor_ * (targets_.z_loss / static_cast<double>(targets_.counted))).to(dtype_);
    // Where no target counts all gradients are 0.
    if (wants_weight_ && targets_.counted == 0) weight_gradient_ = at::zeros_like(head_.weight);
    if (wants_bias_ && targets_.counted == 0) bias_gradient_ = at::zeros_like(head_.bias);
    if (wants_hidden_) {
      // backward() multiplies by a scalar on the device, which CUDA rounds to the dtype of the other factor.
      const at::TensorOptions sums = head_.hidden.options().dtype(dtype_);
      hidden_gradient_ =
          rows_.defined() ? at::zeros(head_.hidden.sizes(), sums) : at::empty(head_.hidden.sizes(), sums);
    }
    const std::int64_t rows = std::max<std::int64_t>(chunk_bytes / (head_.weight.size(0) * 4), 1);
    for (std::int64_t first = 0; first < targets_.counted; first += rows)
      add_rows(first, std::min(rows, targets_.counted - first));
    if (wants_hidden_ && head_.ranks != nullptr) head_.ranks->all_reduce_sum(hidden_gradient_).wait();
  }

  [[nodiscard]] at::Tensor loss() const { return (loss_ / divisor_).to(dtype_); }
  [[nodiscard]] const at::Tensor& right() const { return right_; }
  [[nodiscard]] at::Tensor nll() const { return (nll_ / static_cast<double>(targets_.counted)).to(dtype_); }
  /// A scalar of float64: the number of targets that count, or the sum of their weights.
  [[nodiscard]] const at::Tensor& divisor() const { return divisor_; }
  /// The gradients of the sums, in float32 or float64; undefined where none is wanted.
  [[nodiscard]] const at::Tensor& hidden_gradient() const { return hidden_gradient_; }
  [[nodiscard]] const at::Tensor& weight_gradient() const { return weight_gradient_; }
  [[nodiscard]] const at::Tensor& bias_gradient() const { return bias_gradient_; }

 private:
  /// Those of the rows whose targets count, from number `first` among them.
  [[nodiscard]] at::Tensor of_rows(const at::Tensor& tensor, std::int64_t first, std::int64_t rows) const {
    return rows_.defined() ? tensor.index_select(0, rows_.narrow(0, first, rows))
                           : tensor.narrow(0, first, rows);
  }

  /// What the loss of some rows is made of. The sums of all classes are [rows, 1].
  struct Rows {
    at::Tensor columns;     ///< [rows, 1], those of the targets among this rank's classes.
    at::Tensor is_own;      ///< [rows, 1], whether they are; undefined if all are.
    at::Tensor logarithms;  ///< [rows, classes of this rank], of the probabilities.
    at::Tensor picked;      ///< The logarithms of the targets.
    at::Tensor sums;        ///< The weighted sums of logarithms, for label smoothing.
    at::Tensor logsumexp;   ///< Those of the logits; undefined without a z_loss.
  };

  /// The sum over the classes of a row that label smoothing takes: with weights, if there are some.
  [[nodiscard]] at::Tensor smoothed(const at::Tensor& values) const {
    return (own_weights_.defined() ? values.mv(own_weights_) : values.sum(1)).unsqueeze(1);
  }

  Rows whole_rows(const at::Tensor& values, const at::Tensor& columns) {
    if (counts_right_) right_.add_(values.argmax(1, /*keepdim=*/true).eq(columns).sum());
    Rows rows{.columns = columns, .logarithms = at::log_softmax(values, 1)};
    rows.picked = rows.logarithms.gather(1, columns);
    if (targets_.z_loss != 0) rows.logsumexp = values.gather(1, columns) - rows.picked;
    if (targets_.label_smoothing != 0) rows.sums = smoothed(rows.logarithms);
    return rows;
  }

  /// Those of this rank's classes. The sums are of the classes of all ranks.
  Rows own_rows(const at::Tensor& values, const at::Tensor& targets) {
    Group& ranks = *head_.ranks;
    const std::int64_t first = values.size(1) * ranks.rank();
    Rows rows{.columns = targets - first};
    rows.is_own = rows.columns.ge(0).logical_and_(rows.columns.lt(values.size(1)));
    // A target that is no class of any rank stays outside, so that the gather refuses it.
    const at::Tensor is_class = targets.ge(0).logical_and_(targets.lt(head_.classes()));
    rows.columns.masked_fill_(rows.is_own.logical_not(), 0);
    rows.columns.masked_fill_(is_class.logical_not_(), values.size(1));
    const auto [own_largest, own_index] = values.max(1, /*keepdim=*/true);
    at::Tensor largest = own_largest.clone();
    ranks.all_reduce_max(largest).wait();
    if (counts_right_) {
      // The first of equal logits counts, as with argmax.
      const at::Tensor lead =
          (own_index + first).neg_().masked_fill_(own_largest.ne(largest), -head_.classes());
      ranks.all_reduce_max(lead).wait();
      right_.add_(lead.neg().eq(targets).sum());
    }
    rows.logarithms = values - largest;
    const bool smooths = targets_.label_smoothing != 0;
    const at::Tensor picked =
        rows.logarithms.gather(1, rows.columns).masked_fill_(rows.is_own.logical_not(), 0);
    std::vector<at::Tensor> sums = {rows.logarithms.exp().sum(1, /*keepdim=*/true), picked};
    if (smooths) sums.push_back(smoothed(rows.logarithms));
    const at::Tensor all = at::cat(sums, 1);
    ranks.all_reduce_sum(all).wait();
    const at::Tensor log_sum = all.narrow(1, 0, 1).log();
    rows.logarithms.sub_(log_sum);
    rows.picked = all.narrow(1, 1, 1) - log_sum;
    if (targets_.z_loss != 0) rows.logsumexp = largest + log_sum;
    if (smooths) {
      const at::Tensor& weights = targets_.class_weights;
      rows.sums =
          all.narrow(1, 2, 1) -
          log_sum * (weights.defined() ? weights.sum() : at::full({}, head_.classes(), log_sum.options()));
    }
    return rows;
  }

  /// Returns logits in float32 or float64. They are not rounded to 16 bits first where the device can do so.
  [[nodiscard]] at::Tensor logits_of(const at::Tensor& hidden) const {
    if (!is_wide_) return at::linear(hidden, head_.weight, head_.bias).to(dtype_);
    at::Tensor logits = at::mm(hidden, head_.weight.t(), dtype_);
    if (head_.bias.defined()) logits.add_(head_.bias);
    return logits;
  }

  void add_rows(std::int64_t first, std::int64_t rows) {
    const at::Tensor hidden = of_rows(head_.hidden, first, rows);
    const at::Tensor targets = of_rows(targets_.classes, first, rows).unsqueeze(1);
    Rows own;
    {
      const at::Tensor values = logits_of(hidden);
      own = head_.ranks == nullptr ? whole_rows(values, targets) : own_rows(values, targets);
    }
    // The rows' weights of their targets, [rows, 1], and the weights of all classes in label smoothing.
    const double classes = static_cast<double>(head_.classes());
    const double smoothing = targets_.label_smoothing;
    const at::Tensor& weights = targets_.class_weights;
    const at::Tensor of_target = (weights.defined() ? weights.index_select(0, targets.squeeze(1)).unsqueeze(1)
                                                    : at::ones({rows, 1}, own.logarithms.options())) *
                                 (1 - smoothing);
    if (counts_right_) nll_.sub_(own.picked.sum(at::kDouble));
    at::Tensor losses = -of_target * own.picked;
    if (smoothing != 0) losses -= own.sums * (smoothing / classes);
    if (own.logsumexp.defined()) losses += own.logsumexp.square() * z_factor_;
    loss_.add_(losses.sum(at::kDouble));
    if (!wants_hidden_ && !wants_weight_ && !wants_bias_) return;

    // The softmax takes the place of its logarithms, and has a factor for each row.
    at::Tensor gradient = own.logarithms.exp_();
    if (weights.defined() || own.logsumexp.defined()) {
      at::Tensor factor = of_target;
      if (smoothing != 0)
        factor = factor + (weights.defined() ? weights.sum() / classes : at::ones({}, of_target.options())) *
                              smoothing;
      if (own.logsumexp.defined()) factor = factor + own.logsumexp * (z_factor_ * 2);
      gradient.mul_(factor);
    }
    const at::Tensor own_target = own.is_own.defined() ? of_target * own.is_own : of_target;
    gradient.scatter_add_(1, own.columns, -own_target);
    if (smoothing != 0 && weights.defined()) gradient.sub_(own_weights_ * (smoothing / classes));
    if (smoothing != 0 && !weights.defined()) gradient.sub_(smoothing / classes);
    add_gradients(first, rows, hidden, gradient);
  }

  /// `gradient` is that of the rows' logits.
  void add_gradients(std::int64_t first, std::int64_t rows, const at::Tensor& hidden,
                     const at::Tensor& gradient) {
    if (wants_bias_) add_to(bias_gradient_, gradient.sum(0));
    // float16 cannot hold the sums of many rows.
    const bool is_float16 = head_.hidden.scalar_type() == at::kHalf;
    const at::Tensor factor = is_float16 ? gradient : gradient.to(head_.hidden.scalar_type());
    if (wants_hidden_) {
      const at::Tensor product = is_float16 ? float16_product(gradient) : factor.mm(head_.weight).to(dtype_);
      rows_.defined() ? hidden_gradient_.index_copy_(0, rows_.narrow(0, first, rows), product)
                      : hidden_gradient_.narrow(0, first, rows).copy_(product);
    }
    if (!wants_weight_) return;
    const at::Tensor left = factor.t();
    const at::Tensor right = is_float16 ? hidden.to(dtype_) : hidden;
    if (weight_gradient_.defined() && left.scalar_type() == dtype_) {
      weight_gradient_.addmm_(left, right);
    } else if (is_wide_ && left.scalar_type() != dtype_) {
      // No product in 16 bits goes through memory.
      if (!weight_gradient_.defined())
        weight_gradient_ = at::zeros({left.size(0), right.size(1)}, gradient.options());
      at::addmm_out(weight_gradient_, weight_gradient_, left, right, dtype_);
    } else {
      add_to(weight_gradient_, left.mm(right).to(dtype_));
    }
  }

  /// The product of `gradient` and the weight, in float32. In float16 the gradient of a small probability
  /// would be 0, so each row is multiplied by a power of two with which its own gradients and its products
  /// are at most 2^15.
  [[nodiscard]] at::Tensor float16_product(const at::Tensor& gradient) const {
    const at::Tensor largest_weight = head_.weight.norm(INFINITY).to(dtype_).clamp_min(1);
    const at::Tensor bound = gradient.norm(1, {1}, /*keepdim=*/true).mul_(largest_weight).clamp_min_(0x1p-60);
    const at::Tensor scale = bound.reciprocal_().mul_(0x1p15).log2_().floor_().exp2_();
    at::Tensor scaled = at::empty_like(gradient, gradient.options().dtype(at::kHalf));
    at::mul_out(scaled, gradient, scale);
    return scaled.mm(head_.weight).to(dtype_).div_(scale);
  }

  LinearHead head_;
  const HeadTargets& targets_;
  at::ScalarType dtype_;
  bool wants_hidden_;
  bool wants_weight_;
  bool wants_bias_;
  bool counts_right_;
  bool is_wide_;     // Whether products of 16 bits have float32 results.
  at::Tensor rows_;  // The numbers of the rows whose targets count; undefined if all do.
  at::Tensor loss_;
  at::Tensor right_;
  at::Tensor nll_;
  at::Tensor divisor_;
  at::Tensor own_weights_;  // Those of this rank's classes.
  at::Tensor z_factor_;     // The mean of z_loss has the number of targets as its divisor.
  at::Tensor hidden_gradient_;
  at::Tensor weight_gradient_;
  at::Tensor bias_gradient_;
};

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const HeadTargets& targets, std::int64_t chunk_bytes, Group* ranks) {
    HeadPass pass({hidden, weight, bias.value_or(at::Tensor()), ranks}, targets, /*has_grad=*/true);
    pass.run(chunk_bytes);
    // Where no target counts the gradient is 0, as that of cross_entropy.
    const at::Tensor inverse =
        targets.counted == 0 ? at::zeros_like(pass.divisor()) : pass.divisor().reciprocal();
    context->save_for_backward(
        {pass.hidden_gradient(), pass.weight_gradient(), pass.bias_gradient(), inverse});
    context->saved_data["dtypes"] = std::vector<std::int64_t>{
        static_cast<std::int64_t>(hidden.scalar_type()), static_cast<std::int64_t>(weight.scalar_type()),
        static_cast<std::int64_t>(bias ? bias->scalar_type() : weight.scalar_type())};
    return pass.loss();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const std::vector<std::int64_t> dtypes = context->saved_data["dtypes"].toIntVector();
    const at::Tensor factor = gradients[0] * saved[3];
    torch::autograd::variable_list results(6);
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      // Nothing else uses the sums, and the graph goes through backward once.
      if (saved[i].defined())
        results[i] = at::Tensor(saved[i]).mul_(factor).to(static_cast<at::ScalarType>(dtypes[i]));
    }
    return results;
  }
};

}  // namespace

HeadLoss linear_cross_entropy(const LinearHead& head, const HeadTargets& targets,
                              std::optional<std::int64_t> chunk_bytes) {
  const bool has_gradient = at::GradMode::is_enabled() && head.hidden.requires_grad();
  std::int64_t bytes = chunk_bytes.value_or(kHeadChunkBytes);
  if (has_gradient && !chunk_bytes) {
    bytes = std::max(bytes, head.hidden.numel() * std::int64_t{4});
    if (!head.hidden.is_cpu()) bytes = std::max(bytes, kHeadDeviceRows * head.weight.size(0) * 4);
  }
  if (at::GradMode::is_enabled()) {
    const std::optional<at::Tensor> bias = head.bias.defined() ? std::optional(head.bias) : std::nullopt;
    return {LinearCrossEntropy::apply(head.hidden, head.weight, bias, targets, bytes, head.ranks), {}, {}};
  }
  HeadPass pass(head, targets, /*has_grad=*/false);
  pass.run(bytes);
  return {pass.loss(), pass.right(), pass.nll()};
}

}  // namespace accel::train
