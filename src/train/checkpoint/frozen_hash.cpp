#include "train/checkpoint/frozen_hash.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/flight_record.hpp"
#include "ckpt/io/crc32.hpp"
#include "plan/layout/flat_layout.hpp"
#include "structure/tensor_part.hpp"

namespace accel::train {
namespace {

constexpr std::int64_t kElements = 64;

/// The sum of the hashes of the chosen elements of `parameter` in `piece`, which is of `shard`. The elements
/// are those of the whole parameter, of which tensor parallelism may have cut this one.
double hash_of(const FlatParameter& parameter, const ShardPiece& piece, const at::Tensor& shard) {
  const std::vector<std::int64_t> whole = parameter.spec.whole_shape();
  const std::int64_t numel = checked_numel(whole);
  const std::int64_t chosen = std::min(kElements, numel);
  std::vector<std::int64_t> elements;
  std::vector<std::int64_t> in_shard;
  for (std::int64_t i = 0; i < chosen; ++i) {
    // The product of two 64-bit numbers could overflow.
    const std::int64_t element = numel / chosen * i + numel % chosen * i / chosen;
    const std::optional<std::int64_t> own =
        parameter.spec.part ? index_in_part(whole, *parameter.spec.part, element) : element;
    if (!own || *own < piece.in_parameter.begin || *own >= piece.in_parameter.end) continue;
    elements.push_back(element);
    in_shard.push_back(piece.shard_offset + *own - piece.in_parameter.begin);
  }
  if (elements.empty()) return 0;
  const at::Tensor places = at::tensor(in_shard, at::TensorOptions(at::kLong));
  const flight::HostSync sync(!shard.is_cpu());
  const at::Tensor values = shard.index_select(0, places.to(shard.device())).to(at::kCPU, at::kDouble);
  const std::string& name = parameter.spec.fqns.front();
  const std::uint32_t name_crc = ckpt::crc32(std::as_bytes(std::span(name)));
  double sum = 0;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    std::uint32_t crc = ckpt::crc32(std::as_bytes(std::span(&elements[i], 1)), name_crc);
    crc = ckpt::crc32(std::as_bytes(std::span(values.const_data_ptr<double>() + i, 1)), crc);
    sum +=
        crc >> 8;  // A double holds the sum of 2^29 such numbers exactly, in whatever order they are added.
  }
  return sum;
}

}  // namespace

std::string frozen_hash(const ShardedModel& model, Group& group) {
  const at::NoGradGuard no_grad;
  std::array<double, 1> sum = {0};
  for (const auto& unit : model.units()) {
    for (const auto& buffer : unit->buffers()) {
      if (buffer->trainable()) continue;
      const FlatLayout& layout = buffer->layout();
      for (const ShardPiece& piece : portion_pieces(layout, model.groups().place()))
        sum[0] += hash_of(layout.parameters[piece.parameter], piece, buffer->shard());
    }
  }
  group.all_reduce_sum(sum);
  return fmt::format("{:x}", static_cast<std::uint64_t>(sum[0]));
}

void require_frozen(const std::filesystem::path& checkpoint, const ckpt::RunState& state,
                    const ShardedModel& model, Group& group) {
  if (!state.frozen_hash || *state.frozen_hash == frozen_hash(model, group)) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' is of an adapter on other frozen weights than those of this run",
                          checkpoint.string()))
      .hint("training.model.path and training.model.weights must be those with which the run began");
}

}  // namespace accel::train
