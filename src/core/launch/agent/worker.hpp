#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>

#include "base/files/fd.hpp"
#include "core/launch/agent/plan.hpp"
#include "core/launch/agent/relay.hpp"
#include "core/launch/agent/supervisor.hpp"

namespace accel::launch {

/// A worker that the supervisor has started.
struct Worker {
  const WorkerPlan* plan;
  pid_t pid;
  Fd pidfd;
  Relay out;
  Relay err;
  std::optional<WorkerOutcome> outcome;  ///< Set once it has ended.
  std::chrono::steady_clock::time_point drain_until;
};

/// Takes the outcome of a worker that has ended, and adds the last lines that it wrote.
WorkerOutcome outcome_with_lines(Worker& worker);

}  // namespace accel::launch
