#include "base/host/large_memory.hpp"

#include <sys/mman.h>

#include <cstdlib>

namespace accel {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kWorthwhileBytes = 2 * kHugePageBytes;

}  // namespace

void* allocate_large(std::size_t bytes) {
  if (bytes < kWorthwhileBytes) {
    void* memory = std::malloc(bytes == 0 ? 1 : bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  if (bytes > std::numeric_limits<std::size_t>::max() - kHugePageBytes) throw std::bad_alloc();
  const std::size_t whole = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* memory = std::aligned_alloc(kHugePageBytes, whole);
  if (memory == nullptr) throw std::bad_alloc();
  // Advice: a system without large pages refuses it, and nothing is lost.
  (void)::madvise(memory, whole, MADV_HUGEPAGE);
  return memory;
}

void free_large(void* memory) noexcept { std::free(memory); }

}  // namespace accel
