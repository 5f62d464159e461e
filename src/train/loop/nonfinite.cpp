#include "train/loop/nonfinite.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
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

/// Negative infinities stand for what is masked.
bool is_sound(const at::Tensor& values) {
  return !values.is_floating_point() ||
         !at::isnan(values).logical_or(at::isposinf(values)).any().item<bool>();
}

/// The first parameter of this rank's shards, in the order of the model, whose elements in `values` are not
/// sound. With `from_last` the last one with an element that is not finite.
std::optional<Found> first_parameter(const ShardedModel& model, const std::vector<const FlatBuffer*>& buffers,
                                     bool from_last,
                                     const std::function<at::Tensor(const FlatBuffer&)>& values) {
  std::map<std::string, std::int64_t> places;
  for (const ParameterInfo& parameter : model.structure().parameters)
    places.emplace(parameter.fqns.front(), static_cast<std::int64_t>(places.size()));
  std::optional<Found> found;
  for (const FlatBuffer* buffer : buffers) {
    const FlatLayout& layout = buffer->layout();
    const at::Tensor all = values(*buffer);
    const int shard = layout.is_replicated() ? 0 : model.groups().place().shard;
    for (const ShardPiece& piece : pieces_of(layout, shard)) {
      const at::Tensor own = all.narrow(0, piece.shard_offset, piece.in_parameter.size());
      if (from_last ? at::isfinite(own).all().item<bool>() : is_sound(own)) continue;
      const std::string& name = layout.parameters[piece.parameter].spec.fqns.front();
      const std::int64_t place = from_last ? -places[name] : places[name];
      if (!found || place < found->place) found = {place, name};
    }
  }
  return found;
}

std::optional<Found> first_weight(const ShardedModel& model) {
  std::vector<const FlatBuffer*> buffers;
  for (const auto& unit : model.units()) {
    for (const auto& buffer : unit->buffers()) buffers.push_back(buffer.get());
  }
  return first_parameter(model, buffers, false, [](const FlatBuffer& buffer) { return buffer.shard(); });
}

/// A buffer that is not sound. The forward may have made it so.
std::optional<Found> first_buffer(const ShardedModel& model) {
  for (const auto& [name, buffer] : model.persistent_buffers()) {
    if (!is_sound(buffer)) return Found{0, name};
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
      if (!found && !is_sound(tensor)) found = {calls, unit};
    });
  });
  const std::shared_ptr<void> end(nullptr, [&model](void*) { model.watch_results({}); });
  for (const std::vector<std::int64_t>& numbers : samples)
    (void)forward_loss(model, config, batches.again(numbers));
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
    const std::string buffer = unit.empty() ? first_of(world, first_buffer(model)) : std::string();
    return {
        !unit.empty()    ? fmt::format("inputs and weights are finite, and the first result of a unit that "
                                          "is not is that of '{}'",
                                       unit)
        : buffer.empty() ? "inputs and weights are finite"
                         : fmt::format("inputs and weights are finite, and the buffer '{}' is not", buffer),
        fmt::format("look in forward for a division by 0, a logarithm of 0, a row of attention that masks "
                    "leave empty, or numbers too large for their dtype; {}",
                    kSmaller)};
  }
  const std::vector<FlatBuffer*>& trainable = model.trainable_buffers();
  const std::string parameter =
      first_of(world, first_parameter(model, {trainable.begin(), trainable.end()}, true,
                                      [](const FlatBuffer& buffer) { return buffer.gradient(); }));
  return {
      parameter.empty()
          ? ""
          : fmt::format("the first gradient in backward that is not finite is that of '{}'", parameter),
      fmt::format("look there for a square root or a norm of 0, whose derivative is infinite; {}", kSmaller)};
}

}  // namespace accel::train
