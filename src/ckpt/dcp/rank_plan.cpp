#include "ckpt/dcp/rank_plan.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/dcp/record.hpp"
#include "ckpt/pickle/writer.hpp"
#include "ckpt/torch/tensor.hpp"

namespace accel::ckpt {
namespace {

// The record, without the numbers that plan_dcp_rank knows only at its end. They do not change its length.
ItemRecord record_of(const PlannedItem& planned) {
  ItemRecord record;
  record.path = planned.item.path;
  if (const auto* chunk = std::get_if<TensorChunk>(&planned.item.content)) {
    record.chunk = ItemRecord::Chunk{chunk->dtype, chunk->shape, chunk->box};
  }
  return record;
}

}  // namespace

TorchArchive dcp_archive(const DcpItem& item) {
  if (const auto* object = std::get_if<pickle::Value>(&item.content))
    return TorchArchive(pickle::write(*object));
  const auto& chunk = std::get<TensorChunk>(item.content);
  const std::uint64_t bytes = checked_nbytes(chunk.box.sizes, item_bytes(chunk.dtype));
  return TorchArchive(pickle::write(pickle_of_tensor(chunk.dtype, chunk.box.sizes, "0")), {&bytes, 1});
}

DcpRankPlan plan_dcp_rank(int rank, std::vector<DcpItem> items) {
  DcpRankPlan plan;
  plan.rank = rank;
  plan.file = fmt::format("__{}_0.distcp", rank);
  plan.items.reserve(items.size());
  for (DcpItem& item : items) {
    PlannedItem planned;
    if (const auto* chunk = std::get_if<TensorChunk>(&item.content)) {
      try {
        check_within(chunk->box, chunk->shape);
      } catch (const Error& e) {
        throw Error(ErrorKind::kFailure, fmt::format("tensor '{}': {}", fqn_of(item.path), e.message()));
      }
      planned.payload_bytes = checked_nbytes(chunk->box.sizes, item_bytes(chunk->dtype));
    }
    planned.length = dcp_archive(item).total_bytes();
    planned.item = std::move(item);
    // A payload is aligned within its archive, so in an aligned archive it is aligned in the file.
    planned.record_offset = round_up(plan.total_bytes, kDcpAlignment);
    const std::uint64_t record_end =
        checked_add<std::uint64_t>(planned.record_offset, encode_item_record(record_of(planned)).size());
    planned.offset = round_up(record_end, kDcpAlignment);
    plan.total_bytes = checked_add(planned.offset, planned.length);
    plan.items.push_back(std::move(planned));
  }
  return plan;
}

std::string dcp_item_record(const DcpRankPlan& plan, std::size_t index) {
  const PlannedItem& planned = plan.items.at(index);
  ItemRecord record = record_of(planned);
  record.rank = static_cast<std::uint32_t>(plan.rank);
  record.index = static_cast<std::uint32_t>(index);
  record.count = static_cast<std::uint32_t>(plan.items.size());
  record.offset = planned.offset;
  record.length = planned.length;
  return encode_item_record(record);
}

}  // namespace accel::ckpt
