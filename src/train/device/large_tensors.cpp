#include "train/device/large_tensors.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <new>

#include "base/host/block_cache.hpp"

namespace accel::train {
namespace {

constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

/// The cache is never destroyed, because tensors may outlive main.
BlockCache& cache() {
  static auto* const blocks = new BlockCache;
  return *blocks;
}

void give_back(void* memory) {
  if (memory == nullptr) return;
  if (cache().give(memory)) {
    c10::profiledCPUMemoryReporter().Delete(memory);
  } else {
    c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
  }
}

class LargeTensorAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes >= kLargeBytes) {
      try {
        void* memory = cache().take(bytes);
        c10::profiledCPUMemoryReporter().New(memory, bytes);
        return {memory, memory, &give_back, c10::DeviceType::CPU};
      } catch (const std::bad_alloc&) {
        // libtorch's allocator below reports in its own words how much memory it could not get.
      }
    }
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }

  /// Frees memory of either allocator, for callers that allocate without a DataPtr.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

}  // namespace

void keep_memory_of_large_tensors() {
  static LargeTensorAllocator allocator;
  c10::SetCPUAllocator(&allocator);
}

void reset_peak_of_large_tensors() { cache().reset_peak(); }

}  // namespace accel::train
