#include "train/checkpoint/frozen_hash.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "base/files/flight_record.hpp"
#include "ckpt/io/crc32.hpp"
#include "plan/flat_layout.hpp"

namespace accel::train {
namespace {

constexpr std::int64_t kElements = 64;

/// The sum of the hashes of the chosen elements of `parameter` in `piece`, which is of `shard`.
double hash_of(const FlatParameter& parameter, const ShardPiece& piece, const at::Tensor& shard) {
  const std::int64_t chosen = std::min(kElements, parameter.numel);
  std::vector<std::int64_t> elements;
  for (std::int64_t i = 0; i < chosen; ++i) {
    // The product of two 64-bit numbers could overflow.
    const std::int64_t element = parameter.numel / chosen * i + parameter.numel % chosen * i / chosen;
    if (element >= piece.in_parameter.begin && element < piece.in_parameter.end) elements.push_back(element);
  }
  if (elements.empty()) return 0;
  at::Tensor places = at::empty({static_cast<std::int64_t>(elements.size())}, at::TensorOptions(at::kLong));
  for (std::size_t i = 0; i < elements.size(); ++i)
    places.mutable_data_ptr<std::int64_t>()[i] = piece.shard_offset + elements[i] - piece.in_parameter.begin;
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
