#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/torch/tensor.hpp"

namespace accel::ckpt {

/// The largest number of ranks that a file may state.
inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 24;

/// How a tensor lies along one dimension of the mesh of ranks.
struct Placement {
  /// The dimension of the tensor that is sharded, or -1 if the tensor is replicated.
  std::int64_t dim = -1;
  /// If greater than 1, the dimension is first split into that many parts, and each rank has a shard of each.
  std::int64_t split_factor = 1;

  friend bool operator==(const Placement&, const Placement&) = default;
};

/// A torch.distributed.tensor.DTensor as one rank pickles it.
struct DTensor {
  TorchTensor local;
  Dims shape;                          ///< Shape of the whole tensor.
  Dims mesh;                           ///< Ranks along each dimension of the mesh.
  std::vector<std::int64_t> position;  ///< This rank's position in the mesh; empty if it has none.
  std::vector<Placement> placements;   ///< One for each dimension of the mesh.
  std::vector<std::int64_t> ranks;     ///< All ranks of the mesh.
};

/// The DTensor that `value` describes, as torch 2.4 to 2.15 write it, or nothing if it is something else.
/// Throws Error: kCorrupt if the description contradicts itself, kFailure for a placement that is neither a
/// shard nor a replica, such as a partial sum.
[[nodiscard]] std::optional<DTensor> dtensor_of(const pickle::Value& value);

/// A box of a DTensor's local tensor, and where it is in the whole one.
struct LocalPart {
  Box box;            ///< The box in the whole tensor.
  Dims local_offset;  ///< Its position in the local tensor.

  friend bool operator==(const LocalPart&, const LocalPart&) = default;
};

/// The parts of the local tensor: one, several if a split factor takes them from several places, or none if
/// it is empty. Dimensions are split as torch.chunk does: all shards but the last ones have the same size.
/// Throws Error (kCorrupt) if the local tensor does not have the shape that follows from the placements.
[[nodiscard]] std::vector<LocalPart> parts_of(const DTensor& tensor);

}  // namespace accel::ckpt
