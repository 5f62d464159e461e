#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <vector>

#include "base/files/fd.hpp"
#include "core/launch/agent/hang_watch.hpp"
#include "core/launch/agent/plan.hpp"
#include "core/launch/agent/supervisor.hpp"
#include "core/launch/output/relay.hpp"

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

/// The workers that have ended and have no outcome yet.
[[nodiscard]] std::vector<Worker*> ended_workers(std::vector<Worker>& workers);

/// Whether the process is a worker that has no outcome yet.
[[nodiscard]] bool runs_as(const std::vector<Worker>& workers, pid_t pid);

/// Whether the workers run, and when each has last written something.
[[nodiscard]] std::vector<HangWatch::Life> lives_of(const std::vector<Worker>& workers);

/// Whether all have an outcome and nothing is left to read of them.
[[nodiscard]] bool are_done(const std::vector<Worker>& workers);

/// When the streams of the worker are to be served although nothing arrives; nothing if they need not be.
[[nodiscard]] std::optional<std::chrono::steady_clock::time_point> output_due(const Worker& worker);

/// Takes the outcome of a worker that has ended, and adds the last lines that it wrote.
WorkerOutcome outcome_with_lines(Worker& worker);

}  // namespace accel::launch
