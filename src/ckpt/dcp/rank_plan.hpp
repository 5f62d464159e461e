#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/tensor/state_path.hpp"
#include "ckpt/torch/archive.hpp"

namespace accel::ckpt {

/// Writing a DCP checkpoint (docs/formats.md, "DCP"): every rank writes `__{rank}_0.distcp` (rank_write.hpp),
/// then rank 0 writes `.metadata` (metadata_write.hpp). Lengths do not depend on the values of tensors, so
/// rank 0 can plan every rank's file by itself, and no rank has to tell another where its items ended up.
///
///   std::vector<DcpItem> items;
///   for (Box& box : boxes_of_range(shape, begin, end))          // this rank's flat range of one parameter
///     items.push_back({{"model", "h.0.weight"}, TensorChunk{DType::kFloat32, shape, std::move(box)}});
///   const DcpRankPlan plan = plan_dcp_rank(rank, std::move(items));
///   const FileSummary summary = write_dcp_rank(directory, plan, [&](std::size_t i) { return bytes_of(i); });
///   // After a barrier, on rank 0, with the plans of all ranks:
///   write_dcp_metadata(directory, plans);

/// One box of a tensor. A tensor without elements is written as one chunk, Box::whole(shape), by one rank.
struct TensorChunk {
  DType dtype = DType::kFloat32;
  Dims shape;  ///< Shape of the whole tensor.
  Box box;
};

/// One entry of a rank's file: a chunk of a tensor, whose elements come later, or a Python object (a "bytes"
/// item).
struct DcpItem {
  StatePath path;  ///< The path of the item, whose FQN is fqn_of(path).
  std::variant<TensorChunk, pickle::Value> content;
};

/// An item and its place in the rank's file.
struct PlannedItem {
  DcpItem item;
  std::uint64_t record_offset = 0;  ///< Offset of the record (record.hpp) before the item; a multiple of 64.
  std::uint64_t offset = 0;         ///< Offset of the item's zip archive; a multiple of 64.
  std::uint64_t length = 0;         ///< Bytes of the archive.
  std::uint64_t payload_bytes = 0;  ///< Bytes that the PayloadSource must give; 0 for an object.
};

struct DcpRankPlan {
  int rank = 0;
  std::string file;  ///< The name of the file, "__{rank}_0.distcp".
  std::vector<PlannedItem> items;
  std::uint64_t total_bytes = 0;
};

/// Lays out the file of one rank, in the order of `items`, without any I/O. Throws Error (kFailure) if a box
/// does not lie within its tensor.
[[nodiscard]] DcpRankPlan plan_dcp_rank(int rank, std::vector<DcpItem> items);

/// The archive of an item. The archive of a chunk has one storage.
[[nodiscard]] TorchArchive dcp_archive(const DcpItem& item);

/// The record of plan.items[index], which is written at its record_offset.
[[nodiscard]] std::string dcp_item_record(const DcpRankPlan& plan, std::size_t index);

}  // namespace accel::ckpt
