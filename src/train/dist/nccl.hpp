#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace accel::train {

/// Loads libtorch's CUDA half into this process, so that `cuda` devices exist. A run on CPU ranks never calls
/// it: the CUDA libraries would cost each rank over 200 MB of memory. Call before the first use of any
/// tensor. An Error if this build has no CUDA part, or if libtorch does not see a GPU of that number.
void load_cuda(int device_index);

/// The NCCL backend for this rank's `device`; load_cuda() must have been called. `members` are the ranks of
/// the group `name` by their numbers in the job. Collective.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            const std::vector<int>& members, const std::string& name,
                                            c10::Device device);

}  // namespace accel::train
