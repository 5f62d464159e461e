#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <vector>

#include "core/config/config.hpp"
#include "train/c10d/group.hpp"

namespace accel::train::testing {

/// Runs `body` as `size` ranks, each in a process of its own, because a process has one sharded model. `port`
/// is free; rank 0 listens on it.
inline void on_forked_ranks(int size, int port, const std::function<void(Group&)>& body) {
  std::vector<pid_t> children;
  for (int number = 0; number < size; ++number) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    try {
      Rank rank;
      rank.rank = rank.local_rank = number;
      rank.world_size = rank.local_world_size = size;
      rank.master_port = port;
      Group group = Group::connect(rank, config::Backend::kAuto, at::kCPU);
      body(group);
      group.barrier();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << number << ": " << error.what();
    }
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace accel::train::testing
