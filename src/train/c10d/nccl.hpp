#pragma once

#include <c10/util/intrusive_ptr.h>

#include "train/c10d/nccl_plugin.hpp"

namespace accel::train {

/// Returns the NCCL backend for this rank's device. load_accelerator() must have been called. Collective.
/// Versions of NCCL that do not fit together are an Error of kind kFailure (nccl_version.hpp).
c10::intrusive_ptr<c10d::Backend> make_nccl(const NcclRequest& request);

}  // namespace accel::train
