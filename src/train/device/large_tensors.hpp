#pragma once

namespace accel::train {

/// Makes libtorch keep the memory of CPU tensors of 1 MiB and more when they are freed, and use it again for
/// later tensors (base/block_cache). Smaller tensors come from malloc as before. Affects the whole process:
/// call it once, before the first tensor is made.
void keep_memory_of_large_tensors();

/// Gives memory that is kept back to the system, and lets no more be kept than tensors take from now on. Call
/// it when the model is sharded: before that, tensors may have taken as much as the whole model.
void reset_peak_of_large_tensors();

}  // namespace accel::train
