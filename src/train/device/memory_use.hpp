#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace accel::train {

/// The peak resident memory of this process, in bytes.
std::uint64_t max_rss_bytes();

/// The most bytes that tensors have had at once on `device` so far (torch.cuda.max_memory_allocated), or none
/// on the CPU.
std::optional<std::uint64_t> max_memory_allocated_bytes(c10::Device device);

}  // namespace accel::train
