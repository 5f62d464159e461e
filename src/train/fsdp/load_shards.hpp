#pragma once

#include <span>

#include "train/fsdp/flat_buffer.hpp"
#include "train/model/weight_source.hpp"

namespace accel::train {

/// Fills the buffer's shard, which is number `shard`, with the bytes of its own elements, read from
/// `weights`; no other byte of the parameters is read. `sources` are the parameters' indices in the
/// structure, in layout order.
void load_shard(WeightSource& weights, std::span<const std::size_t> sources, FlatBuffer& buffer, int shard);

}  // namespace accel::train
