#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

/// The largest difference between the values of a token in `expected` and in `found`, relative to their size.
/// The dimension `tokens` is that of the tokens.
double difference(const at::Tensor& expected, const at::Tensor& found, std::int64_t tokens) {
  if (expected.sizes() != found.sizes()) return kUnlike;
  const auto rows = [&](const at::Tensor& tensor) {
    const at::Tensor values = tensor.transpose(0, tokens).flatten(1).to(at::kDouble);
    // Infinities and the largest numbers stand for what is masked.
    return values.masked_fill((values.abs() < 1e30).logical_not(), 0);
  };
  const at::Tensor off = (rows(found) - rows(expected)).square().mean(1).sqrt();
  const at::Tensor size = rows(expected).square().mean(1).sqrt();
  // A token of zeros, such as one of padding, is measured by the others.
  const at::Tensor least = (size.max() * 1e-2).clamp_min(1e-30);
  return (off / at::maximum(size, least)).max().item<double>();
}

/// The same for the result of the whole sequences, of which a rank has the part that `found` is.
double difference_of_part(const at::Tensor& whole, const at::Tensor& found,
                          const SequenceParallel& sequence) {
  if (whole.dim() != found.dim()) return kUnlike;
  for (std::int64_t i = 0; i < found.dim(); ++i) {
    if (whole.size(i) == found.size(i)) continue;
    if (whole.size(i) != found.size(i) * sequence.size()) return kUnlike;
    return difference(whole.narrow(i, sequence.rank() * found.size(i), found.size(i)), found, i);
  }
  return kUnlike;
}

/// Puts a model into evaluation, and back to what it was: mode, random numbers and buffers, also those that a
/// forward assigns.
class KeptState {
 public:
  KeptState(torch::jit::Module& root, at::Device device)
      : root_(root), was_training_(root.is_training()), random_(RandomState::now(device)), device_(device) {
    for (const auto& module : root.modules()) {
      for (std::size_t slot = 0; slot < module.type()->numAttributes(); ++slot) {
        if (!module.type()->is_buffer(slot)) continue;
        const c10::IValue value = module._ivalue()->getSlot(slot);
        if (value.isTensor() && value.toTensor().defined())
          buffers_.push_back({module._ivalue(), slot, value.toTensor(), value.toTensor().clone()});
      }
    }
    root_.train(false);
  }
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;
  ~KeptState() {
    root_.train(was_training_);
    try {
      for (const Buffer& buffer : buffers_) {
        at::Tensor(buffer.tensor).copy_(buffer.values);
        buffer.module->setSlot(buffer.slot, buffer.tensor);
      }
      random_.restore();
    } catch (const std::exception&) {
      // A device that has failed refuses all. Its own error ends the rank.
    }
  }

  /// Whether random numbers have been drawn since.
  [[nodiscard]] bool has_drawn() const {
    const RandomState now = RandomState::now(device_);
    return !now.cpu().equal(random_.cpu()) || (now.gpu().defined() && !now.gpu().equal(random_.gpu()));
  }

 private:
  struct Buffer {
    c10::intrusive_ptr<c10::ivalue::Object> module;
    std::size_t slot;
    at::Tensor tensor;
    at::Tensor values;
  };

  torch::jit::Module& root_;
  bool was_training_;
  RandomState random_;
  at::Device device_;
  std::vector<Buffer> buffers_;
};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::kUsage,
              fmt::format("sequence parallelism would train another model, whose tokens see each other "
                          "elsewhere than in attention and masks: {}",
                          why))
      .hint(
          "set parallelism_config.sp_size: 1; a model can be cut if it computes everything but attention "
          "and masks for each token by itself, with position_ids as an input");
}

}  // namespace

void ShardedModel::compare_parts(std::vector<c10::IValue> inputs,
                                 const std::function<at::Tensor(const c10::IValue&)>& output_of) {
  if (sequence_ == nullptr || std::exchange(parts_compared_, true)) return;
  Group& world = groups_.world();
  if (world.backend_name() == "fake") return;  // What comes back from the exchange is made up.
  for (std::size_t number = 0; number < inputs.size(); ++number) {
    const at::Tensor whole = inputs[number].toTensor();
    if (whole.dim() < 2 || whole.size(0) == 0) return;  // enter() says why not.
    const std::int64_t of_rank = std::min(kPieceOfRank, whole.size(1) / sequence_->size());
    if (of_rank == 0) return;
    at::Tensor piece = whole.narrow(0, 0, 1);
    const bool is_mask = sequence_->input(number).find("mask") != std::string::npos;
    for (std::int64_t i = 1; i < (is_mask ? piece.dim() : 2); ++i) {  // A mask may have the length twice.
      if (piece.size(i) == whole.size(1)) piece = piece.narrow(i, 0, of_rank * sequence_->size());
    }
    inputs[number] = std::move(piece);
  }
  const at::NoGradGuard no_grad;
  const KeptState kept(module_, device_);  // Dropout is off, and no statistics are taken.
  const auto run_trial = [&](Trial& trial) {
    sequence_->set_trial(&trial);
    const std::shared_ptr<void> end(nullptr, [this](void*) { sequence_->set_trial(nullptr); });
    return output_of(forward(inputs));
  };
  const auto on_any_rank = [&](double value) {
    at::Tensor values = at::full({1}, value, at::TensorOptions(device_).dtype(at::kDouble));
    world.all_reduce_max(values).wait();
    return values.item<double>();
  };
  const auto warn = [&](std::string_view why) {
    if (world.rank() == 0)
      log::warn(fmt::format("parts of sequences could not be compared with the whole ones: {}", why));
  };
  Trial whole{true, {}};
  Trial parts;
  at::Tensor expected;
  try {
    expected = run_trial(whole);
  } catch (const std::exception& error) {
    // Every rank has the same sizes.
    if (std::string_view(error.what()).find("the model was exported for") == std::string_view::npos) throw;
    if (sequence_->mixing()) refuse(fmt::format("it calls {}", *sequence_->mixing()));
    for (const auto& unit : units_) {  // The root's call has not ended.
      unit->begin_micro_batch();
      unit->reshard();
    }
    return warn("the model was exported for sizes that a piece of a batch does not have");
  }
  const bool draws = on_any_rank(kept.has_drawn() ? 1 : 0) != 0;
  const at::Tensor found = run_trial(parts);
  // A result is float32 under autocast, too.
  const bool rough = autocast_ || is_rough(found) ||
                     std::any_of(parts.seen.begin(), parts.seen.end(),
                                 [](const auto& seen) { return is_rough(seen.second); });
  const std::size_t count = std::min(whole.seen.size(), parts.seen.size());
  std::size_t first = 0;
  double off = 0;
  const auto is_beyond = [&](double value) {
    off = value;
    return off > tolerance(rough, float8_.has_value(), first / 3);
  };
  constexpr std::int64_t kTokens = 2;  // [batch, heads, length, width]
  const auto of_attention = [&](std::size_t i) {
    const at::Tensor& found_there = parts.seen[i].second;
    return found_there.dim() == 4 ? difference(whole.seen[i].second, found_there, kTokens) : kUnlike;
  };
  while (first < count && !is_beyond(of_attention(first))) ++first;
  const bool is_off = first < count || is_beyond(difference_of_part(expected, found, *sequence_));
  // Every rank names the first place that any rank has found.
  const double place = -on_any_rank(is_off ? -static_cast<double>(first) : -kUnlike);
  if (place == kUnlike) return;
  const double largest = on_any_rank(is_off && place == static_cast<double>(first) ? off : 0);
  const auto number = static_cast<std::size_t>(place);
  const std::string what = fmt::format(
      "with sequences cut into {} parts, {} differs by {:.2g} of its size from that of the whole sequences",
      sequence_->size(),
      number < count ? fmt::format("what attention of '{}' gets", text_of_module(whole.seen[number].first))
                     : std::string("the output"),
      largest);
  if (draws && !sequence_->mixing()) return warn("the model draws random numbers in evaluation");
  if (rough && sequence_->has_choices() && !sequence_->mixing())
    return warn(what + ", where rounding may send a token to another expert; float32 would tell");
  refuse(fmt::format("{}{}", what,
                     sequence_->mixing() ? fmt::format("; it calls {}", *sequence_->mixing()) : ""));
}

}  // namespace accel::train
