#include "train/fsdp/sequence_parallel.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/api/function_impl.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/error.hpp"
#include "structure/structure.hpp"
#include "train/graph/analysis/sequence_mixing.hpp"
#include "train/graph/passes/replace_attention.hpp"

namespace accel::train {
namespace {

/// Row r of a tensor [ranks, n] goes to rank r, and row r of the result comes from it. That of the gradient
/// goes back.
class AllToAll : public torch::autograd::Function<AllToAll> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& rows,
                            std::int64_t group) {
    context->saved_data["group"] = group;
    return exchanged(rows, group);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {exchanged(gradients[0], context->saved_data["group"].toInt()), at::Tensor()};
  }

  static at::Tensor apply_in(Group& group, const at::Tensor& rows) {
    return apply(rows, reinterpret_cast<std::int64_t>(&group));  // NOLINT: an IValue holds no pointer.
  }

 private:
  static at::Tensor exchanged(const at::Tensor& rows, std::int64_t group) {
    const at::Tensor in = rows.contiguous();
    at::Tensor out = at::empty_like(in);
    reinterpret_cast<Group*>(group)->all_to_all(out.reshape({-1}), in.reshape({-1})).wait();  // NOLINT
    return out;
  }
};

/// From [batch, heads, length / ranks, width] with all heads to [batch, heads / ranks, length, width] with
/// this rank's heads, for several tensors in one collective.
std::vector<at::Tensor> to_own_heads(Group& group, const std::vector<at::Tensor>& tensors) {
  const std::int64_t ranks = group.size();
  std::vector<at::Tensor> rows;
  std::vector<std::int64_t> lengths;
  for (const at::Tensor& tensor : tensors) {
    rows.push_back(tensor.reshape({tensor.size(0), ranks, -1, tensor.size(2), tensor.size(3)})
                       .transpose(0, 1)
                       .reshape({ranks, -1}));
    lengths.push_back(rows.back().size(1));
  }
  const std::vector<at::Tensor> parts =
      AllToAll::apply_in(group, at::cat(rows, 1)).split_with_sizes(lengths, 1);
  std::vector<at::Tensor> result;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    result.push_back(
        parts[i]
            .reshape({ranks, tensor.size(0), tensor.size(1) / ranks, tensor.size(2), tensor.size(3)})
            .permute({1, 2, 0, 3, 4})
            .reshape({tensor.size(0), tensor.size(1) / ranks, ranks * tensor.size(2), tensor.size(3)}));
  }
  return result;
}

/// From [batch, heads / ranks, length, width] back to [batch, heads, length / ranks, width]. Its strides are
/// those of the fused kernels, [batch, length, heads, width] transposed: torch.export leaves out a
/// contiguous() that they make needless.
at::Tensor to_own_part(Group& group, const at::Tensor& tensor) {
  const std::int64_t ranks = group.size();
  const std::int64_t length = tensor.size(2) / ranks;
  const at::Tensor rows = tensor.reshape({tensor.size(0), tensor.size(1), ranks, length, tensor.size(3)})
                              .permute({2, 0, 1, 3, 4})
                              .reshape({ranks, -1});
  const at::Tensor parts = AllToAll::apply_in(group, rows)
                               .reshape({ranks, tensor.size(0), tensor.size(1), length, tensor.size(3)});
  const std::int64_t heads = ranks * tensor.size(1);
  return parts.permute({1, 3, 0, 2, 4})
      .contiguous()
      .view({tensor.size(0), length, heads, tensor.size(3)})
      .transpose(1, 2);
}

std::unique_ptr<torch::jit::GraphFunction> function_of(const torch::jit::Module& root,
                                                       const std::shared_ptr<torch::jit::Graph>& masks) {
  constexpr const char* kName = "_accel_masks";
  auto function = std::make_unique<torch::jit::GraphFunction>(c10::QualifiedName(kName), masks, nullptr);
  function->setSchema(
      root.get_method("forward").function().getSchema().cloneWithName(kName, "").cloneWithReturns(
          {c10::Argument("", masks->outputs().at(0)->type())}));
  return function;
}

/// The dtype in which an attention of `query` computes.
at::ScalarType dtype_of_attention(const at::Tensor& query) {
  const at::DeviceType device = query.device().type();
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                   : query.scalar_type();
}

}  // namespace

/// The attention in the code of one module.
class SequenceParallel::Attention {
 public:
  Attention(SequenceParallel& parallel, std::string module)
      : parallel_(&parallel), module_(std::move(module)) {}

  void add(const AttentionPlace& place) {
    const auto [known, is_new] = masks_.try_emplace(place.number, place.mask);
    if (is_new || known->second == place.mask) return;
    throw Error(ErrorKind::kUsage,
                fmt::format("attention of '{}' is called several times with different masks",
                            text_of_module(module_)))
        .hint("set parallelism_config.sp_size: 1, or export a model with a module for each call");
  }

  at::Tensor operator()(const AttentionCall& call) const {
    if (Trial* trial = parallel_->trial_; trial != nullptr) {
      for (const at::Tensor& tensor : {call.query, call.key, call.value})
        trial->seen.emplace_back(module_, trial->is_whole ? own_tokens(tensor) : tensor);
      if (trial->is_whole) return plain_attention(call);
    }
    Group& group = parallel_->ranks_;
    const std::int64_t ranks = group.size();
    const auto require = [&](bool holds, const std::string& what, const char* hint) {
      if (!holds)
        throw Error(ErrorKind::kUsage, fmt::format("attention of '{}': {}", text_of_module(module_), what))
            .hint(hint);
    };
    for (const at::Tensor& tensor : {call.query, call.key, call.value}) {
      require(tensor.dim() == 4 && tensor.size(2) * ranks == parallel_->length_ &&
                  tensor.size(0) == call.query.size(0),
              fmt::format("query, key and value are {}, {} and {}, but sequence parallelism needs "
                          "[batch, heads, length, width] of one sequence",
                          fmt::streamed(call.query.sizes()), fmt::streamed(call.key.sizes()),
                          fmt::streamed(call.value.sizes())),
              "only attention of a sequence to itself can be cut; set parallelism_config.sp_size: 1");
    }
    const std::int64_t heads = call.query.size(1);
    require(heads % ranks == 0,
            fmt::format("its {} heads are not a multiple of parallelism_config.sp_size: {}", heads, ranks),
            "set parallelism_config.sp_size to a number that divides the heads");
    const std::int64_t shared = call.key.size(1);
    require(
        call.value.size(1) == shared && (shared == heads || (call.enable_gqa && heads % shared == 0)),
        fmt::format("it has {} heads, {} heads of keys and {} of values", heads, shared, call.value.size(1)),
        "set enable_gqa where scaled_dot_product_attention is called");
    // A rank has whole groups of query heads with their head of keys, or the heads of keys are repeated.
    const bool repeats = shared % ranks != 0;
    const auto keys = [&](const at::Tensor& tensor) {
      return repeats ? tensor.repeat_interleave(heads / shared, 1) : tensor;
    };
    const std::vector<at::Tensor> own = to_own_heads(group, {call.query, keys(call.key), keys(call.value)});
    return to_own_part(
        group, at::scaled_dot_product_attention(own[0], own[1], own[2], own_mask(call, heads), call.dropout,
                                                call.is_causal, call.scale, call.enable_gqa && !repeats));
  }

 private:
  /// A copy of this rank's tokens of what the whole sequences give. A tensor of another form stays whole.
  [[nodiscard]] at::Tensor own_tokens(const at::Tensor& tensor) const {
    const std::int64_t ranks = parallel_->ranks_.size();
    if (tensor.dim() != 4 || tensor.size(2) % ranks != 0) return tensor;
    const std::int64_t length = tensor.size(2) / ranks;
    return tensor.narrow(2, parallel_->ranks_.rank() * length, length).clone();
  }

  /// The mask of this rank's heads over the whole sequence.
  [[nodiscard]] std::optional<at::Tensor> own_mask(const AttentionCall& call, std::int64_t heads) const {
    const std::optional<std::size_t> number = masks_.at(call.number);
    if (!number || !parallel_->masks_.at(*number).defined()) return std::nullopt;
    // A unit in mixed precision has cast a mask of numbers that it got.
    const at::ScalarType dtype = call.mask && call.mask->is_floating_point() ? call.mask->scalar_type()
                                                                             : dtype_of_attention(call.query);
    // aten makes numbers of booleans in each call, and autograd would keep them, or a cast, for each layer.
    // They are made once here, for all layers of a dtype.
    at::Tensor& mask = parallel_->cast_masks_[{*number, dtype}];
    if (!mask.defined()) {
      const at::Tensor& given = parallel_->masks_[*number];
      mask = given.scalar_type() == at::kBool ? at::zeros(given.sizes(), given.options().dtype(dtype))
                                                    .masked_fill_(given.logical_not(), -INFINITY)
                                              : given.to(dtype);
    }
    if (mask.dim() < 3 || mask.size(-3) == 1) return mask;
    const std::int64_t own = heads / parallel_->size();
    return mask.narrow(-3, parallel_->ranks_.rank() * own, own);
  }

  SequenceParallel* parallel_;
  std::string module_;
  std::map<std::int64_t, std::optional<std::size_t>> masks_;  ///< By AttentionCall::number.
};

SequenceParallel::SequenceParallel(const torch::jit::Module& root, std::vector<std::string> inputs,
                                   Group& ranks)
    : inputs_(std::move(inputs)), ranks_(ranks), root_(root._ivalue()) {
  const AttentionCode code = replace_attention(root);
  const auto positions = std::find(inputs_.begin(), inputs_.end(), "position_ids");
  const auto input = static_cast<std::size_t>(positions - inputs_.begin()) + 1;
  if (input >= code.rest->inputs().size() || !code.rest->inputs()[input]->hasUses()) {
    throw Error(
        ErrorKind::kUsage,
        "the model does not use 'position_ids' outside of its masks, so that each rank would count the "
        "positions of its part of a sequence from 0")
        .hint("export the model with --inputs input_ids,position_ids, or set parallelism_config.sp_size: 1");
  }
  if (code.places.empty()) {
    throw Error(ErrorKind::kUsage,
                "sequence parallelism cuts attention by its heads, and the model does not call "
                "scaled_dot_product_attention")
        .hint(
            "export a model of transformers with its default attention, sdpa, or set "
            "parallelism_config.sp_size: 1");
  }
  mixing_ = find_sequence_mixing(*code.rest);
  has_choices_ = train::has_choices(*code.rest);
  if (code.masks != nullptr) make_masks_ = function_of(root, code.masks);
  std::unordered_map<std::string, Attention> by_module;
  for (const AttentionPlace& place : code.places)
    by_module.try_emplace(place.module, *this, place.module).first->second.add(place);
  std::unordered_map<const c10::ivalue::Object*, AttentionFunction> functions;
  for (const auto& module : root.named_modules()) {
    const auto found = by_module.find(module.name);
    if (found != by_module.end()) functions.emplace(module.value._ivalue().get(), found->second);
  }
  registration_.emplace(std::move(functions));
}

SequenceParallel::~SequenceParallel() = default;

std::vector<c10::IValue> SequenceParallel::enter(const std::vector<c10::IValue>& inputs) {
  if (trial_ != nullptr && trial_->is_whole) return inputs;
  std::vector<c10::IValue> own;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& whole = inputs[i].toTensor();
    own.emplace_back(own_part(whole, inputs_.at(i)));
    const at::Tensor& first = inputs[0].toTensor();
    if (whole.size(1) != first.size(1)) {
      throw Error(
          ErrorKind::kUsage,
          fmt::format("'{}' is {}, and '{}' is {}: sequence parallelism needs [batch, length, ...] of "
                      "one length",
                      inputs_[i], fmt::streamed(whole.sizes()), inputs_[0], fmt::streamed(first.sizes())))
          .hint("set parallelism_config.sp_size: 1");
    }
    length_ = whole.size(1);
  }
  if (make_masks_ == nullptr) return own;
  const at::NoGradGuard no_grad;
  std::vector<c10::IValue> whole = {root_};
  whole.insert(whole.end(), inputs.begin(), inputs.end());
  masks_.clear();
  cast_masks_.clear();
  const c10::IValue masks = (*make_masks_)(std::move(whole));
  for (const c10::IValue& mask : masks.toTupleRef().elements())
    masks_.push_back(mask.isNone() ? at::Tensor() : mask.toTensor());
  return own;
}

at::Tensor SequenceParallel::own_part(const at::Tensor& whole, std::string_view name) const {
  const std::int64_t parts = ranks_.size();
  if (whole.dim() < 2) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is {}, and sequence parallelism needs [batch, length, ...]", name,
                            fmt::streamed(whole.sizes())))
        .hint("set parallelism_config.sp_size: 1");
  }
  if (whole.size(1) % parts != 0) {
    throw Error(ErrorKind::kUsage, fmt::format("'{}' has sequences of {} tokens, which is not a multiple of "
                                               "parallelism_config.sp_size: {}",
                                               name, whole.size(1), parts))
        .hint("pad the sequences to a multiple");
  }
  const std::int64_t length = whole.size(1) / parts;
  return whole.narrow(1, ranks_.rank() * length, length);
}

}  // namespace accel::train
