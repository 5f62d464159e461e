#pragma once

namespace accel::train {

/// From now on memory of the CPU's tensors from 1 MiB on is kept when they are gone, for those of the next
/// step (base/block_cache); smaller ones are malloc's, as before. For the whole process: called once, before
/// the first tensor is made.
void keep_memory_of_large_tensors();

}  // namespace accel::train
