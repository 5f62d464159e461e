#include "base/host/block_cache.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <new>

namespace accel {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kLargePageBytes = std::size_t{2} << 20;

void* map_pages(std::size_t bytes) noexcept {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

/// Returns null if the system has no memory left.
void* map_block(std::size_t bytes) noexcept {
  if (bytes < kLargePageBytes) return map_pages(bytes);
  auto* memory = static_cast<char*>(map_pages(bytes + kLargePageBytes));
  if (memory == nullptr) return nullptr;
  const std::size_t past = reinterpret_cast<std::uintptr_t>(memory) % kLargePageBytes;
  const std::size_t front = past == 0 ? 0 : kLargePageBytes - past;
  if (front > 0) ::munmap(memory, front);
  if (front < kLargePageBytes) ::munmap(memory + front + bytes, kLargePageBytes - front);
  // Advice: a system without large pages refuses it, and nothing is lost.
  (void)::madvise(memory + front, bytes, MADV_HUGEPAGE);
  return memory + front;
}

}  // namespace

BlockCache::~BlockCache() { unmap_all(); }

void* BlockCache::take(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc();
  const std::size_t wanted = std::max<std::size_t>(1, (bytes + kPageBytes - 1) / kPageBytes) * kPageBytes;
  const std::lock_guard lock(mutex_);
  Block block{nullptr, wanted, wanted};
  const std::size_t peak = std::max(counts_.peak_bytes, counts_.live_bytes + wanted);
  if (!reuse(wanted, block)) {
    while (!kept_.empty() && counts_.mapped_bytes + wanted > peak) unmap(kept_.begin());
    block.memory = map_block(wanted);
    if (block.memory == nullptr && !kept_.empty()) {
      unmap_all();
      block.memory = map_block(wanted);
    }
    if (block.memory == nullptr) throw std::bad_alloc();
    counts_.mapped_bytes += wanted;
    ++counts_.mapped;
  }
  counts_.live_bytes += wanted;
  counts_.peak_bytes = peak;
  live_.emplace(block.memory, block);
  return block.memory;
}

bool BlockCache::reuse(std::size_t bytes, Block& block) {
  const auto found = kept_by_size_.lower_bound(bytes);
  if (found == kept_by_size_.end() || found->first > bytes + bytes / 8) return false;
  block.memory = found->second->memory;
  block.bytes = found->second->bytes;
  kept_.erase(found->second);
  kept_by_size_.erase(found);
  ++counts_.reused;
  return true;
}

bool BlockCache::give(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(memory);
  if (found == live_.end()) return false;
  const Block block = found->second;
  live_.erase(found);
  counts_.live_bytes -= block.requested;
  bool listed = false;
  try {
    kept_.push_back(block);
    listed = true;
    kept_by_size_.emplace(block.bytes, std::prev(kept_.end()));
  } catch (const std::bad_alloc&) {
    if (listed) kept_.pop_back();
    ::munmap(block.memory, block.bytes);
    counts_.mapped_bytes -= block.bytes;
  }
  return true;
}

void BlockCache::unmap(Kept::iterator block) noexcept {
  const auto [begin, end] = kept_by_size_.equal_range(block->bytes);
  kept_by_size_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == block; }));
  ::munmap(block->memory, block->bytes);
  counts_.mapped_bytes -= block->bytes;
  kept_.erase(block);
}

void BlockCache::unmap_all() noexcept {
  while (!kept_.empty()) unmap(kept_.begin());
}

void BlockCache::reset_peak() noexcept {
  const std::lock_guard lock(mutex_);
  unmap_all();
  counts_.peak_bytes = counts_.live_bytes;
}

BlockCache::Counts BlockCache::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace accel
