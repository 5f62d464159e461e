#pragma once

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "ranks/lockstep.hpp"
#include "ranks/peers.hpp"
#include "ranks/shared_segment.hpp"

namespace accel {

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ACCEL_ONE_MAPPING true
#endif
#endif
#ifndef ACCEL_ONE_MAPPING
#define ACCEL_ONE_MAPPING false
#endif
inline constexpr bool kOneMapping = ACCEL_ONE_MAPPING;

/// Slots so small that small tensors need many pieces.
inline constexpr SlotGeometry kSmallSlots = {.slot_bytes = 256, .slots = 2};

/// Runs `body` as `size` ranks, each on a thread of its own. When all are done, throws what the first of them
/// threw. Each rank maps the memory at an address of its own, as processes do. Under ThreadSanitizer, which
/// knows memory by its address, the ranks use one mapping.
inline void on_ranks(int size, const SlotGeometry& geometry, const std::function<void(Lockstep&)>& body) {
  const SharedSegment segment = SharedSegment::create(Lockstep::shared_bytes(size, geometry));
  const std::vector<ProcessIdentity> processes(static_cast<std::size_t>(size), ProcessIdentity::self());
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        SharedSegment own = kOneMapping ? segment.same_mapping() : SharedSegment::open(segment.address());
        Lockstep ranks(std::move(own), PeerWatch(processes, rank), rank, size, geometry);
        body(ranks);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

/// Returns what `action` throws, or "nothing".
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing";
}

}  // namespace accel
