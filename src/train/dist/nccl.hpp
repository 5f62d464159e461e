#pragma once

#include <c10/util/intrusive_ptr.h>

#include "train/dist/nccl_plugin.hpp"

namespace accel::train {

/// Loads libtorch's CUDA half into this process, so that `cuda` devices exist. A run on CPU ranks never calls
/// it: the CUDA libraries would cost each rank over 200 MB of memory. Call before the first use of any
/// tensor. An Error if this build has no CUDA part, or if libtorch does not see a GPU of that number.
void load_cuda(int device_index);

/// The NCCL backend for this rank's device; load_cuda() must have been called. Collective. An Error if NCCL's
/// versions do not fit together (nccl_version.hpp).
c10::intrusive_ptr<c10d::Backend> make_nccl(const NcclRequest& request);

}  // namespace accel::train
