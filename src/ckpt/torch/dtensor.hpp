#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/torch/tensor.hpp"

namespace accel::ckpt {

/// How a tensor lies along one dimension of the mesh of ranks.
struct Placement {
  std::int64_t dim = -1;  ///< The tensor's dimension that is cut; -1: every rank has all of it.
  std::int64_t split_factor =
      1;  ///< Above 1: cut into that many parts first, of which each rank has a piece.

  friend bool operator==(const Placement&, const Placement&) = default;
};

/// A torch.distributed.tensor.DTensor as one rank pickles it.
struct DTensor {
  TorchTensor local;
  Dims shape;                          ///< Of the whole tensor.
  Dims mesh;                           ///< Ranks along each dimension of the mesh.
  std::vector<std::int64_t> position;  ///< This rank's in the mesh; empty if it is not part of it.
  std::vector<Placement> placements;   ///< One for each dimension of the mesh.
  std::vector<std::int64_t> ranks;     ///< All of the mesh.
};

/// The DTensor that `value` stands for, as torch 2.4 to 2.15 write it; nothing if it is something else.
/// Throws Error: kCorrupt if its description contradicts itself, kFailure for placements without a place, as
/// partial sums.
[[nodiscard]] std::optional<DTensor> dtensor_of(const pickle::Value& value);

/// A box of a DTensor's local tensor, and where it is in the whole one.
struct LocalPart {
  Box box;            ///< In the whole tensor.
  Dims local_offset;  ///< In the local one.

  friend bool operator==(const LocalPart&, const LocalPart&) = default;
};

/// What the local tensor is made of: one part, or several if a split factor takes it from several places;
/// none if it is empty. Cuts are torch.chunk's: all pieces but the last ones are of the same size. Throws
/// Error (kCorrupt) if the local tensor has not the shape that follows.
[[nodiscard]] std::vector<LocalPart> parts_of(const DTensor& tensor);

}  // namespace accel::ckpt
