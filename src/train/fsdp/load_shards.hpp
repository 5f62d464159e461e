#pragma once

#include <span>

#include "train/fsdp/flat_buffer.hpp"
#include "train/model/model_file.hpp"

namespace accel::train {

/// Fills the shard of `rank` with the bytes of its own elements, read from the model file; no other byte of
/// the parameters is read. `sources` are the parameters' indices in the file, in layout order.
void load_shard(const ModelFile& file, std::span<const std::size_t> sources, FlatBuffer& buffer, int rank);

}  // namespace accel::train
