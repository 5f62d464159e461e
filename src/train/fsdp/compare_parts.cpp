#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "structure/structure.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/graph/run/random_state.hpp"

namespace accel::train {
namespace {

using Trial = SequenceParallel::Trial;

constexpr std::int64_t kPieceOfRank = 64;  ///< Tokens of the piece for each rank.
constexpr double kUnlike = std::numeric_limits<double>::infinity();

/// How far a token's values may be from those of the whole sequence, behind `depth` attentions: rounding adds
/// up with the root of the depth. In 16 bits it also sends some tokens to other experts.
double tolerance(bool is_rough, bool in_float8, std::size_t depth) {
  return (in_float8 ? 0.25 : is_rough ? 0.0625 : 1e-4) * std::sqrt(static_cast<double>(depth) + 1);
}

bool is_rough(const at::Tensor& tensor) {
  const bool in_tf32 = !tensor.is_cpu() && at::globalContext().allowTF32CuBLAS();
  return tensor.scalar_type() != at::kDouble && (tensor.scalar_type() != at::kFloat || in_tf32);
}

/// The largest difference of a token between this rank's part of `whole`, and `part`, relative to the size of
/// the token's values.
double difference(const at::Tensor& whole, const at::Tensor& part, const SequenceParallel& sequence) {
  std::optional<std::int64_t> of_tokens;  // The dimension along which a part is shorter.
  if (whole.dim() != part.dim()) return kUnlike;
  for (std::int64_t i = 0; i < part.dim(); ++i) {
    if (whole.size(i) == part.size(i)) continue;
    if (of_tokens || whole.size(i) != part.size(i) * sequence.size()) return kUnlike;
    of_tokens = i;
  }
  if (!of_tokens) return kUnlike;
  const auto rows = [&](const at::Tensor& tensor) {
    const at::Tensor values = tensor.transpose(0, *of_tokens).flatten(1).to(at::kDouble);
    // Infinities and the largest numbers stand for what is masked.
    return values.masked_fill((values.abs() < 1e30).logical_not(), 0);
  };
  const std::int64_t length = part.size(*of_tokens);
  const at::Tensor expected = rows(whole.narrow(*of_tokens, sequence.rank() * length, length));
  const at::Tensor off = (rows(part) - expected).square().mean(1).sqrt();
  const at::Tensor size = expected.square().mean(1).sqrt();
  // A token of zeros, such as one of padding, is measured by the others.
  const at::Tensor least = (size.max() * 1e-2).clamp_min(1e-30);
  return (off / at::maximum(size, least)).max().item<double>();
}

}  // namespace

void ShardedModel::compare_parts(std::vector<c10::IValue> inputs,
                                 const std::function<at::Tensor(const c10::IValue&)>& output_of) {
  if (sequence_ == nullptr || std::exchange(parts_compared_, true)) return;
  if (groups_.world().backend_name() == "fake") return;  // What comes back from the exchange is made up.
  for (c10::IValue& input : inputs) {
    const at::Tensor whole = input.toTensor();
    if (whole.dim() < 2 || whole.size(0) == 0) return;  // enter() says why not.
    const std::int64_t of_rank = std::min(kPieceOfRank, whole.size(1) / sequence_->size());
    if (of_rank == 0) return;
    input = whole.narrow(0, 0, 1).narrow(1, 0, of_rank * sequence_->size());
  }
  const at::NoGradGuard no_grad;
  const RandomState random = RandomState::now(device_);
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;
  for (const auto& buffer : module_.named_buffers(/*recurse=*/true))
    buffers.emplace_back(buffer.value, buffer.value.clone());
  const auto run_trial = [&](Trial& trial) {
    sequence_->set_trial(&trial);
    at::Tensor output = output_of(forward(inputs));
    sequence_->set_trial(nullptr);
    for (const auto& [buffer, before] : buffers) at::Tensor(buffer).copy_(before);
    return output;
  };
  Group& world = groups_.world();
  const auto on_any_rank = [&](double value) {
    at::Tensor values = at::full({1}, value, at::TensorOptions(device_).dtype(at::kDouble));
    world.all_reduce_max(values).wait();
    return values.item<double>();
  };
  const auto has_drawn = [&] {
    const RandomState now = RandomState::now(device_);
    const bool same =
        now.cpu().equal(random.cpu()) && (!now.gpu().defined() || now.gpu().equal(random.gpu()));
    random.restore();
    return on_any_rank(same ? 0 : 1) != 0;
  };
  Trial whole{true, {}};
  Trial parts;
  at::Tensor expected = run_trial(whole);
  // Parts draw other random numbers than the whole does, so that a dropout is switched off.
  const bool was_training = module_.is_training();
  bool draws = has_drawn();
  if (draws && was_training) {
    set_training(false);
    whole.seen.clear();
    expected = run_trial(whole);
    draws = has_drawn();
  }
  const at::Tensor found = run_trial(parts);
  random.restore();
  if (was_training) set_training(true);
  // A result is float32 under autocast, too.
  const bool rough = autocast_ || is_rough(found) ||
                     std::any_of(parts.seen.begin(), parts.seen.end(),
                                 [](const auto& seen) { return is_rough(seen.second); });
  const std::size_t count = std::min(whole.seen.size(), parts.seen.size());
  std::size_t first = 0;
  double off = 0;
  const auto differs = [&](const at::Tensor& of_whole, const at::Tensor& of_part) {
    off = difference(of_whole, of_part, *sequence_);
    return off > tolerance(rough, float8_.has_value(), first / 3);
  };
  while (first < count && !differs(whole.seen[first].second, parts.seen[first].second)) ++first;
  const bool is_off = first < count || differs(expected, found);
  // Every rank names the first place that any rank has found.
  const auto place = -on_any_rank(is_off ? -static_cast<double>(first) : -kUnlike);
  if (place == kUnlike) return;
  const double largest = on_any_rank(is_off && place == static_cast<double>(first) ? off : 0);
  if (draws && !sequence_->mixing()) {
    if (world.rank() == 0)
      log::warn(
          "the model draws random numbers in evaluation, so that its parts of sequences could not be "
          "compared with "
          "the whole ones");
    return;
  }
  const auto at = static_cast<std::size_t>(place);
  const std::string where =
      at < count ? fmt::format("what attention of '{}' gets", text_of_module(whole.seen[at].first))
                 : std::string("its output");
  const std::string& mixing = sequence_->mixing() ? fmt::format("; it calls {}", *sequence_->mixing()) : "";
  throw Error(
      ErrorKind::kUsage,
      fmt::format(
          "sequence parallelism would train another model: with sequences cut into {} parts, {} differs by "
          "{:.2g} of its size from that of the whole sequences, so that the model lets tokens see each "
          "other elsewhere than in attention and masks{}",
          sequence_->size(), where, largest, mixing))
      .hint(
          "set parallelism_config.sp_size: 1; a model can be cut if it computes everything but attention "
          "and masks for each token by itself, with position_ids as an input");
}

}  // namespace accel::train
