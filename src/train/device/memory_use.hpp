#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace accel::train {

/// Returns the peak of the bytes that tensors on `device` have occupied so far
/// (torch.cuda.max_memory_allocated), or nullopt for the CPU.
std::optional<std::uint64_t> max_memory_allocated_bytes(c10::Device device);

}  // namespace accel::train
