#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

namespace accel {

/// Large blocks of memory that are handed out again instead of being given back to the system, which fills
/// each page with zeros before it hands it out anew (docs/design/015).
///
/// What is mapped, in use and kept, is never more than the most that was asked for at once: a block that
/// fits none of the kept ones takes the place of those that were given back longest ago. So the peak of a
/// process is what it would be without. A kept block serves requests down to 8/9 of its size.
/// Any thread may call it.
class BlockCache {
 public:
  struct Counts {
    std::size_t live_bytes = 0;    ///< Asked for and not given back.
    std::size_t peak_bytes = 0;    ///< The most of those at once.
    std::size_t mapped_bytes = 0;  ///< What the system has given, in use or kept.
    std::uint64_t mapped = 0;      ///< How often it was asked.
    std::uint64_t reused = 0;      ///< How often it was not.
  };

  BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  /// Unmaps what is kept. Blocks in use stay, and must not be given back any more.
  ~BlockCache();

  /// Uninitialised memory, on a boundary of 2 MiB if it is that large, else of a page; large pages if the
  /// system has them. Throws std::bad_alloc.
  [[nodiscard]] void* take(std::size_t bytes);

  /// False if `memory` is not a block of this cache in use; then nothing has happened.
  bool give(void* memory) noexcept;

  [[nodiscard]] Counts counts() const;

 private:
  struct Block {
    void* memory;
    std::size_t bytes;      ///< What is mapped, whole pages.
    std::size_t requested;  ///< Whole pages, too.
  };
  using Kept = std::list<Block>;  // The oldest first.

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
