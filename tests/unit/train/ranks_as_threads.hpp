#pragma once

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "train/c10d/group.hpp"

namespace accel::train::testing {

/// For tests whose ranks are threads of one process. c10d has one flight recorder per process, and Gloo's
/// groups write into it without a lock between them, so that two at once crash now and then. Without a buffer
/// the recorder is off.
inline const bool kFlightRecorderIsOff = ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1) == 0;

/// Runs `body` as `size` ranks, each on a thread of its own, `local` of them on each machine. Returns what
/// each rank has thrown, or null. `port` is free; rank 0 listens on it.
inline std::vector<std::exception_ptr> failures_of_ranks(int size, int local, int port,
                                                         const std::function<void(Group&)>& body,
                                                         config::Backend backend = config::Backend::kAuto) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int number = 0; number < size; ++number) {
    threads.emplace_back([&, number] {
      try {
        Rank rank;
        rank.rank = number;
        rank.world_size = size;
        rank.local_rank = number % local;
        rank.local_world_size = local;
        rank.master_port = port;
        Group group = Group::connect(rank, backend, at::kCPU);
        body(group);
        group.barrier();
        group.shut_down();
      } catch (...) {
        failures[static_cast<std::size_t>(number)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

/// Throws what the first rank with an error has thrown.
inline void on_ranks(int size, int local, int port, const std::function<void(Group&)>& body,
                     config::Backend backend = config::Backend::kAuto) {
  for (const std::exception_ptr& failure : failures_of_ranks(size, local, port, body, backend)) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

}  // namespace accel::train::testing
