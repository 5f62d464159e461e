#include "train/device/memory_use.hpp"

#include <c10/core/CachingDeviceAllocator.h>

namespace accel::train {

std::optional<std::uint64_t> max_memory_allocated_bytes(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  using c10::CachingAllocator::StatType;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto& all = stats.allocated_bytes.at(static_cast<std::size_t>(StatType::AGGREGATE));
  return static_cast<std::uint64_t>(all.peak);
}

}  // namespace accel::train
