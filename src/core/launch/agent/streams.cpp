#include "core/launch/agent/streams.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/terminal.hpp"

namespace accel::launch {
namespace {

std::string prefix_of(const WorkerPlan& worker) {
  return worker.has_prefix ? fmt::format("[rank{}] ", worker.rank) : "";
}

/// The lines in front of the error with which our worker ends, if it has written that into its error file,
/// which it does first. Most ranks end with the same error, and the report of the failure has that of the
/// first.
std::string_view before_error(std::string_view lines, const std::filesystem::path& error_file) {
  constexpr std::string_view kError = "error: ";
  const std::size_t end = lines.find("\nerror: ");
  const bool begins = lines.starts_with(kError);
  std::error_code error;
  if (!begins && end == std::string_view::npos) return lines;
  if (std::filesystem::file_size(error_file, error) == 0 || error) return lines;
  return begins ? std::string_view() : lines.substr(0, end + 1);
}

/// The lines of our worker's log that are warnings or errors. Lines of the log that inform have no label, and
/// lines of libraries have labels of their own, so that neither is among them.
std::string warnings_among(std::string_view lines) {
  std::string warnings;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, std::min(lines.find('\n'), lines.size() - 1) + 1);
    if (line.starts_with("warning: ") || line.starts_with("error: ")) warnings += line;
    lines.remove_prefix(line.size());
  }
  return warnings;
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
    show = [&terminal, prefix = prefix_of(worker), error_file = worker.reports_error ? worker.error_file : "",
            is_ours = worker.reports_error, only_warnings = worker.shows_only_warnings,
            has_ended = false](std::string_view lines) mutable {
      if (has_ended) return;
      if (!error_file.empty()) {
        const std::string_view shown = before_error(lines, error_file);
        has_ended = shown.size() < lines.size();
        lines = shown;
        if (lines.empty()) return;
      }
      std::string text = only_warnings ? warnings_among(lines) : std::string(lines);
      if (is_ours) text = wrapped_on(STDERR_FILENO, text, 2, 0, prefix.size());
      terminal.err(prefix.empty() ? text : with_prefix(text, prefix));
    };
  }
  return Relay(std::move(source), logs.open(log_of(worker, "stderr.log"), worker.log_rotation),
               std::move(show));
}

std::filesystem::path log_of(const WorkerPlan& worker, const char* name) {
  return worker.log_dir.empty() ? std::filesystem::path() : worker.log_dir / name;
}

}  // namespace accel::launch
