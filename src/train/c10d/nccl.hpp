#pragma once

#include <c10/util/intrusive_ptr.h>

#include "train/c10d/nccl_plugin.hpp"

namespace accel::train {

/// The NCCL backend for this rank's device; load_cuda() must have been called. Collective. An Error if NCCL's
/// versions do not fit together (nccl_version.hpp).
c10::intrusive_ptr<c10d::Backend> make_nccl(const NcclRequest& request);

}  // namespace accel::train
