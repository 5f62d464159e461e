#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

namespace accel {

/// A cache of large blocks of memory. A block that is given back is kept and serves a later request; the
/// system would fill each of its pages with zeros first (docs/design/015).
///
/// The mapped bytes, in use and kept together, never exceed the most that was in use at once since the last
/// reset_peak(): if no kept block fits a request, those that were given back longest ago are unmapped to
/// make room. So the cache does not raise the peak of a process. A kept block serves requests down to 8/9 of
/// its size. Any thread may call it.
class BlockCache {
 public:
  struct Counts {
    std::size_t live_bytes = 0;    ///< The bytes of blocks in use.
    std::size_t peak_bytes = 0;    ///< The most bytes in use at once since reset_peak().
    std::size_t mapped_bytes = 0;  ///< The bytes of blocks in use and of kept ones.
    std::uint64_t mapped = 0;      ///< Requests that the system served.
    std::uint64_t reused = 0;      ///< Requests that a kept block served.
  };

  BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  /// Unmaps the kept blocks. Blocks in use stay valid, and must not be given back any more.
  ~BlockCache();

  /// Uninitialised memory. A block of 2 MiB or more is aligned to 2 MiB and asks for large pages; a smaller
  /// one is aligned to a page. Throws std::bad_alloc.
  [[nodiscard]] void* take(std::size_t bytes);

  /// Takes a block back. False, without any effect, if `memory` is not a block of this cache in use.
  bool give(void* memory) noexcept;

  /// Unmaps the kept blocks, and counts the peak anew from what is in use. Call it after a phase that needs
  /// more memory than what follows.
  void reset_peak() noexcept;

  [[nodiscard]] Counts counts() const;

 private:
  struct Block {
    void* memory;
    std::size_t bytes;      ///< The bytes that are mapped, in whole pages.
    std::size_t requested;  ///< The bytes that were requested, rounded up to whole pages.
  };
  using Kept = std::list<Block>;  // The oldest block is first.

  bool reuse(std::size_t bytes, Block& block);
  void unmap(Kept::iterator block) noexcept;
  void unmap_all() noexcept;

  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> live_;
  Kept kept_;
  std::multimap<std::size_t, Kept::iterator> kept_by_size_;
  Counts counts_;
};

}  // namespace accel
