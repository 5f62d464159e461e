#include "train/fsdp/linears/tensor_linear.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "base/error.hpp"

namespace accel::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kRanks = "ranks";
/// How many outputs of linears are known as parts: more than the projections that one view can follow.
constexpr std::size_t kMostParts = 8;

/// The group in the saved data of a function, which holds numbers alone.
void save(AutogradContext* context, Group& ranks) {
  context->saved_data[kRanks] = reinterpret_cast<std::int64_t>(&ranks);
}
Group& ranks_of(AutogradContext* context) {
  return *reinterpret_cast<Group*>(context->saved_data.at(kRanks).toInt());
}

/// The sum over the ranks, in memory of its own.
at::Tensor sum_of(Group& ranks, const at::Tensor& tensor) {
  at::Tensor sum = tensor.clone(at::MemoryFormat::Contiguous);
  ranks.all_reduce_sum(sum).wait();
  return sum;
}

/// The parts of all ranks side by side in the last dimension.
at::Tensor gathered(Group& ranks, const at::Tensor& part) {
  const at::Tensor own = part.contiguous();
  const at::Tensor all = at::empty({ranks.size() * own.numel()}, own.options());
  ranks.all_gather(all, own.view(-1)).wait();
  std::vector<std::int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), ranks.size());
  return at::cat(all.view(shape).unbind(0), -1);
}

at::Tensor own_part(Group& ranks, const at::Tensor& whole) {
  return whole.chunk(ranks.size(), -1)[static_cast<std::size_t>(ranks.rank())].contiguous();
}

/// Gives its input, and sums the gradient over the ranks.
class SharedInput final : public torch::autograd::Function<SharedInput> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, Group& ranks) {
    save(context, ranks);
    return input.view_as(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {sum_of(ranks_of(context), gradients[0]), at::Tensor()};
  }
};

/// Sums over the ranks, and gives each rank the gradient of the sum.
class Sum final : public torch::autograd::Function<Sum> {
 public:
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& part, Group& ranks) {
    return sum_of(ranks, part);
  }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) {
    return {gradients[0], at::Tensor()};
  }
};

/// Gathers the last dimension. Every rank has the whole gradient, and takes its part.
class Gather final : public torch::autograd::Function<Gather> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& part, Group& ranks) {
    save(context, ranks);
    return gathered(ranks, part);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {own_part(ranks_of(context), gradients[0]), at::Tensor()};
  }
};

/// Takes the rank's part of the last dimension, and gathers the gradient.
class Split final : public torch::autograd::Function<Split> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& whole, Group& ranks) {
    save(context, ranks);
    return own_part(ranks, whole);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gathered(ranks_of(context), gradients[0]), at::Tensor()};
  }
};

}  // namespace

at::Tensor TensorProducts::shared(const at::Tensor& input) {
  if (!at::GradMode::is_enabled() || !input.requires_grad()) return input;
  if (last_) {
    const auto before = last_->input.lock();
    const auto result = last_->result.lock();
    if (before && result && before.get() == input.unsafeGetTensorImpl()) return at::Tensor(result);
  }
  at::Tensor result = SharedInput::apply(input, ranks_);
  last_ = Shared{WeakTensor(input.getIntrusivePtr()), WeakTensor(result.getIntrusivePtr())};
  return result;
}

at::Tensor TensorProducts::linear(TensorStyle style, const at::Tensor& input, const at::Tensor& weight,
                                  const at::Tensor& bias) {
  if (style == TensorStyle::kColwise || style == TensorStyle::kColwiseGather) {
    const at::Tensor part = at::linear(shared(input), weight, bias);
    if (style == TensorStyle::kColwiseGather) return Gather::apply(part, ranks_);
    parts_.emplace_back(part.getIntrusivePtr());
    if (parts_.size() > kMostParts) parts_.pop_front();
    return part;
  }
  const at::Tensor own = style == TensorStyle::kRowwiseSplit ? Split::apply(input, ranks_) : input;
  const at::Tensor sum = Sum::apply(at::linear(own, weight), ranks_);
  return bias.defined() ? sum + bias.to(sum.scalar_type()) : sum;
}

bool TensorProducts::is_part(const at::Tensor& tensor) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const WeakTensor& part) {
    return part.lock().get() == tensor.unsafeGetTensorImpl();
  });
}

void TensorProducts::require_uncut(const at::Tensor& tensor, std::int64_t dim) const {
  if (!is_part(tensor) || (dim != -1 && dim != tensor.dim() - 1)) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("the output of a linear that tensor parallelism cuts is {} on this rank, and the "
                          "model's code cuts its last dimension again: it would take other columns than of "
                          "the whole output",
                          c10::str(tensor.sizes())))
      .hint(
          "a linear that packs several, such as gate_up_proj or qkv_proj, cannot be colwise: leave it and "
          "the rowwise linear behind it out of the plan");
}

void TensorProducts::require_heads(const at::Tensor& tensor, at::IntArrayRef sizes) const {
  const auto free = std::find(sizes.begin(), sizes.end(), -1);
  // Without a -1 the number of elements must fit.
  if (!is_part(tensor) || free == sizes.end()) return;
  const std::int64_t rows = tensor.size(-1) == 0 ? 0 : tensor.numel() / tensor.size(-1);
  const std::int64_t before = c10::multiply_integers(sizes.begin(), free);
  const bool joins_rows = sizes.size() == 2 && free == sizes.begin() && sizes.back() == tensor.size(-1);
  if (before == rows || joins_rows) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("the output of a linear that tensor parallelism cuts is {} on this rank, and the "
                          "model's code views it as [{}], in which -1 is not the number of heads",
                          c10::str(tensor.sizes()), fmt::join(sizes, ", ")))
      .hint("write -1 for the number of heads and the other sizes as they are, as accel-export does");
}

at::Tensor TensorProducts::embedding(TensorStyle style, const at::Tensor& table, const at::Tensor& indices,
                                     std::int64_t padding_index) {
  if (style == TensorStyle::kEmbeddingColwise)
    return Gather::apply(at::embedding(table, indices, padding_index), ranks_);
  const std::int64_t rows = table.size(0);
  const std::int64_t begin = rows * ranks_.rank();
  const at::Tensor local = indices - begin;
  const at::Tensor is_elsewhere = (local < 0).logical_or(local >= rows);
  const at::Tensor is_nowhere = (indices < 0).logical_or(indices >= rows * ranks_.size());
  // An index of no rank stays outside the table, so that the lookup refuses it.
  const at::Tensor safe = local.masked_fill(is_elsewhere, 0).masked_fill(is_nowhere, rows);
  const bool has_padding = padding_index >= begin && padding_index < begin + rows;
  const at::Tensor found = at::embedding(table, safe, has_padding ? padding_index - begin : -1);
  return Sum::apply(found.masked_fill(is_elsewhere.unsqueeze(-1), 0), ranks_);
}

}  // namespace accel::train
