#include "core/launch/agent/worker.hpp"

#include <utility>

#include "core/launch/agent/streams.hpp"

namespace accel::launch {

WorkerOutcome outcome_with_lines(Worker& worker) {
  WorkerOutcome outcome = std::move(*worker.outcome);
  const bool silent = worker.err.tail().empty();
  const auto& tail = silent ? worker.out.tail() : worker.err.tail();
  outcome.last_lines.assign(tail.begin(), tail.end());
  outcome.log = log_of(*worker.plan, silent ? "stdout.log" : "stderr.log");
  return outcome;
}

}  // namespace accel::launch
