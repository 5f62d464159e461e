#pragma once

#include <cstddef>
#include <vector>

#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// The tensors of `base`, by index, that are one tensor in the model of transformers: the embedding, and the
/// head where the files have both. They are matrices of `vocab_size` rows outside the numbered layers. Empty
/// if the config.json beside `base` says that they are not tied, or if there is none. Where it says nothing,
/// a model whose class has a head and whose files have none is tied, and so are two tensors with the same
/// bytes.
[[nodiscard]] std::vector<std::size_t> tied_ends(Checkpoint& base);

/// Whether two tensors of a checkpoint have the same dtype and the same bytes, the second one transposed or
/// not. Transposed ones are matrices, which are read as a whole.
[[nodiscard]] bool same_values(Checkpoint& checkpoint, std::size_t one, std::size_t other, bool transposed);

/// Throws Error (kCorrupt) if an element of a tensor of floating-point numbers is not finite in `dtype`.
void check_finite(Checkpoint& checkpoint, std::size_t tensor, DType dtype);

}  // namespace accel::ckpt
