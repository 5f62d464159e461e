#include "core/launch/agent/worker.hpp"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "core/launch/agent/streams.hpp"

namespace accel::launch {

std::vector<Worker*> ended_workers(std::vector<Worker>& workers) {
  std::vector<Worker*> ended;
  for (Worker& worker : workers) {
    pollfd end{worker.pidfd.get(), POLLIN, 0};
    if (!worker.outcome && ::poll(&end, 1, 0) == 1) ended.push_back(&worker);
  }
  return ended;
}

bool runs_as(const std::vector<Worker>& workers, pid_t pid) {
  return std::any_of(workers.begin(), workers.end(),
                     [pid](const Worker& w) { return !w.outcome && w.pid == pid; });
}

std::vector<HangWatch::Life> lives_of(const std::vector<Worker>& workers) {
  std::vector<HangWatch::Life> lives;
  for (const Worker& worker : workers)
    lives.push_back({!worker.outcome, std::max(worker.out.last_output(), worker.err.last_output())});
  return lives;
}

bool are_done(const std::vector<Worker>& workers) {
  return std::all_of(workers.begin(), workers.end(),
                     [](const Worker& w) { return w.outcome && !w.out.open() && !w.err.open(); });
}

std::optional<std::chrono::steady_clock::time_point> output_due(const Worker& worker) {
  std::optional<std::chrono::steady_clock::time_point> first = worker.out.prompt_due();
  const auto consider = [&first](std::chrono::steady_clock::time_point due) {
    first = first ? std::min(*first, due) : due;
  };
  if (const auto due = worker.err.prompt_due()) consider(*due);
  if (worker.outcome && (worker.out.open() || worker.err.open())) consider(worker.drain_until);
  return first;
}

WorkerOutcome outcome_with_lines(Worker& worker) {
  WorkerOutcome outcome = std::move(*worker.outcome);
  const bool silent = worker.err.tail().empty();
  const auto& tail = silent ? worker.out.tail() : worker.err.tail();
  outcome.last_lines.assign(tail.begin(), tail.end());
  outcome.log = log_of(*worker.plan, silent ? "stdout.log" : "stderr.log");
  return outcome;
}

}  // namespace accel::launch
