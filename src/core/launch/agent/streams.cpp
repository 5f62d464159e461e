#include "core/launch/agent/streams.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace accel::launch {
namespace {

std::string prefix_of(const WorkerPlan& worker) {
  return worker.has_prefix ? fmt::format("[rank{}] ", worker.rank) : "";
}

/// Opens a log file of a worker, if it has some.
LogFile opened_log(const WorkerPlan& worker, const char* name) {
  return LogFile(log_of(worker, name), worker.log_rotation);
}

}  // namespace

Relay out_relay(const WorkerPlan& worker, Fd source, Terminal& terminal, bool moves_out) {
  LineCutter::Sink show;
  if (worker.shows_out) {
    show = [&terminal, moves_out, prefix = prefix_of(worker)](std::string_view lines) {
      const std::string text = prefix.empty() ? std::string(lines) : with_prefix(lines, prefix);
      moves_out ? terminal.err(text) : terminal.out(text);
    };
  }
  return Relay(std::move(source), opened_log(worker, "stdout.log"), std::move(show));
}

Relay err_relay(const WorkerPlan& worker, Fd source, Terminal& terminal) {
  LineCutter::Sink show;
  if (worker.shows_err) {
    show = [&terminal, prefix = prefix_of(worker)](std::string_view lines) {
      prefix.empty() ? terminal.err(lines) : terminal.err(with_prefix(lines, prefix));
    };
  }
  return Relay(std::move(source), opened_log(worker, "stderr.log"), std::move(show));
}

std::filesystem::path log_of(const WorkerPlan& worker, const char* name) {
  return worker.log_dir.empty() ? std::filesystem::path() : worker.log_dir / name;
}

}  // namespace accel::launch
