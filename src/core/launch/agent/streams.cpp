#include "core/launch/agent/streams.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace accel::launch {
namespace {

std::string prefix_of(const WorkerPlan& worker) {
  return worker.has_prefix ? fmt::format("[rank{}] ", worker.rank) : "";
}

}  // namespace

Relay out_relay(const WorkerPlan& worker, Fd source, Terminal& terminal, LogQueue& logs, bool moves_out) {
  LineCutter::Sink show;
  if (worker.shows_out) {
    show = [&terminal, moves_out, prefix = prefix_of(worker)](std::string_view lines) {
      const std::string text = prefix.empty() ? std::string(lines) : with_prefix(lines, prefix);
      moves_out ? terminal.err(text) : terminal.out(text);
    };
  }
  return Relay(std::move(source), logs.open(log_of(worker, "stdout.log"), worker.log_rotation),
               std::move(show));
}

Relay err_relay(const WorkerPlan& worker, Fd source, Terminal& terminal, LogQueue& logs) {
  LineCutter::Sink show;
  if (worker.shows_err) {
    show = [&terminal, prefix = prefix_of(worker)](std::string_view lines) {
      prefix.empty() ? terminal.err(lines) : terminal.err(with_prefix(lines, prefix));
    };
  }
  return Relay(std::move(source), logs.open(log_of(worker, "stderr.log"), worker.log_rotation),
               std::move(show));
}

std::filesystem::path log_of(const WorkerPlan& worker, const char* name) {
  return worker.log_dir.empty() ? std::filesystem::path() : worker.log_dir / name;
}

}  // namespace accel::launch
