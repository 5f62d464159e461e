#include "train/loop/nonfinite.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <ranges>
#include <span>

#include "train/graph/tensors.hpp"
#include "train/loop/model_loss.hpp"

namespace accel::train {
namespace {

/// Something that was found on a rank, and its place in the order in which such things come about.
struct Found {
  std::int64_t place = 0;
  std::string what;
};

/// What comes first of that which the ranks have found; empty if none has found anything.
std::string first_of(Group& world, const std::optional<Found>& found) {
  std::vector<std::byte> bytes;
  if (found) {
    bytes.resize(sizeof(found->place) + found->what.size());
    std::memcpy(bytes.data(), &found->place, sizeof(found->place));
    std::memcpy(bytes.data() + sizeof(found->place), found->what.data(), found->what.size());
  }
  std::string first;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const std::vector<std::byte>& its : world.all_gather_bytes(bytes)) {
    std::int64_t place = 0;
    if (its.size() < sizeof(place)) continue;
    std::memcpy(&place, its.data(), sizeof(place));
    if (place >= least) continue;
    least = place;
    first.assign(reinterpret_cast<const char*>(its.data()) + sizeof(place), its.size() - sizeof(place));
  }
  return first;
}

bool is_finite(const at::Tensor& values) {
  return !values.is_floating_point() || at::isfinite(values).all().item<bool>();
}

/// The first parameter of this rank's shards, in the order of `buffers`, whose elements in `values` are not
/// finite. With `from_last` the last one.
std::optional<Found> first_parameter(const std::vector<const FlatBuffer*>& buffers, int shard, bool from_last,
                                     const std::function<at::Tensor(const FlatBuffer&)>& values) {
  std::optional<Found> found;
  std::int64_t place = 0;
  for (const FlatBuffer* buffer : buffers) {
    const FlatLayout& layout = buffer->layout();
    const at::Tensor all = values(*buffer);
    for (const ShardPiece& piece : pieces_of(layout, layout.is_replicated() ? 0 : shard)) {
      const std::int64_t its = place + static_cast<std::int64_t>(piece.parameter);
      if (is_finite(all.narrow(0, piece.shard_offset, piece.in_parameter.size()))) continue;
      found = {from_last ? -its : its, layout.parameters[piece.parameter].spec.fqns.front()};
      if (!from_last) return found;
    }
    place += static_cast<std::int64_t>(layout.parameters.size());
  }
  return found;
}

std::optional<Found> first_weight(const ShardedModel& model) {
  std::vector<const FlatBuffer*> buffers;
  for (const auto& unit : model.units()) {
    for (const auto& buffer : unit->buffers()) buffers.push_back(buffer.get());
  }
  if (auto found = first_parameter(buffers, model.groups().place().shard, false,
                                   [](const FlatBuffer& buffer) { return buffer.shard(); }))
    return found;
  // A buffer may have infinities, as a mask has.
  for (const auto& [name, buffer] : model.persistent_buffers()) {
    if (buffer.is_floating_point() && at::isnan(buffer).any().item<bool>()) return Found{0, name};
  }
  return std::nullopt;
}

/// The unit whose result is the first that is not finite, in a forward of the same samples.
std::optional<Found> first_unit(ShardedModel& model, const config::ModelConfig& config,
                                TrainingBatches& batches,
                                const std::vector<std::vector<std::int64_t>>& samples) {
  const at::NoGradGuard no_grad;
  std::optional<Found> found;
  std::int64_t calls = 0;
  model.watch_results([&](const std::string& unit, const c10::IValue& result) {
    ++calls;
    if (found) return;
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      if (!found && !is_finite(tensor)) found = {calls, unit};
    });
  });
  for (const std::vector<std::int64_t>& numbers : samples)
    (void)forward_loss(model, config, batches.again(numbers));
  model.watch_results({});
  return found;
}

}  // namespace

NonfiniteCause find_nonfinite(ShardedModel& model, const config::ModelConfig& config,
                              TrainingBatches& batches, const std::vector<std::vector<std::int64_t>>& samples,
                              bool is_loss_finite, bool runs_again) {
  Group& world = model.groups().world();
  std::optional<Found> input;
  for (std::size_t i = 0; i < samples.size() && !input; ++i) {
    if (const auto what = batches.nonfinite_input(samples[i])) input = {static_cast<std::int64_t>(i), *what};
  }
  if (const std::string what = first_of(world, input); !what.empty())
    return {what, "mend or leave out such samples"};
  if (const std::string weight = first_of(world, first_weight(model)); !weight.empty()) {
    return {fmt::format("'{}' itself is not finite before the step", weight),
            "begin with other weights, or go on from a checkpoint before they were so: "
            "training.checkpoint.resume"};
  }
  constexpr const char* kSmaller =
      "if the loss has grown in the steps before, try a smaller learning rate, more warm-up steps, or "
      "max_grad_norm";
  if (!is_loss_finite) {
    const std::string unit =
        runs_again ? first_of(world, first_unit(model, config, batches, samples)) : std::string();
    return {
        unit.empty() ? "inputs and weights are finite"
                     : fmt::format("inputs and weights are finite, and the first result of a unit that "
                                   "is not is that of '{}'",
                                   unit),
        fmt::format("look in forward for a division by 0, a logarithm of 0, a row of attention that masks "
                    "leave empty, or numbers too large for their dtype; {}",
                    kSmaller)};
  }
  const std::vector<FlatBuffer*>& trainable = model.trainable_buffers();
  const std::string parameter =
      first_of(world, first_parameter({trainable.begin(), trainable.end()}, model.groups().place().shard,
                                      true, [](const FlatBuffer& buffer) { return buffer.gradient(); }));
  return {
      parameter.empty()
          ? ""
          : fmt::format("the first gradient in backward that is not finite is that of '{}'", parameter),
      fmt::format("look there for a square root or a norm of 0, whose derivative is infinite; {}", kSmaller)};
}

}  // namespace accel::train
