#include "core/launch/agent/report.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"

namespace accel::launch {
namespace {

constexpr std::uint64_t kLargestErrorFile = 1 << 20;
/// The message of our worker is shown here alone, so that it is whole unless it is absurdly long.
constexpr std::size_t kMessageLines = 60;
constexpr std::size_t kMessageWidth = 4000;
constexpr std::size_t kShownLines = 12;
constexpr std::size_t kOtherRanks = 16;
constexpr std::size_t kLineWidth = 200;

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// When the file was last written, in nanoseconds since 1970; kNever if it does not exist or is empty.
std::int64_t write_time(const std::filesystem::path& file) {
  struct stat info {};
  if (file.empty() || ::stat(file.c_str(), &info) != 0 || info.st_size == 0) {
    return kNever;
  }
  return std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

/// The line made visible and cut to `width` bytes.
std::string shown(std::string_view line, std::size_t width = kLineWidth) {
  if (line.size() <= width) return visible(line);
  std::size_t end = width;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0U) == 0x80)
    --end;  // The cut does not fall within a character.
  return visible(line.substr(0, end)) + "...";
}

std::string_view advice(const ExitStatus& status, const OomKills& kills) {
  switch (status.signal) {
    case SIGKILL:
      if (kills.group.value_or(0) > 0) return " by the kernel, since its control group has no memory left";
      if (kills.machine.value_or(0) > 0)
        return ", likely by the kernel, since the machine has no memory left";
      if (kills.machine) return " by another process: the kernel has killed none for want of memory";
      return "; the system may have run out of memory (see dmesg)";
    case SIGSEGV:
    case SIGBUS:
      return "; a bug in native code";
    default:
      return "";
  }
}

std::string line_of(const WorkerOutcome& worker) {
  const std::string how = text_of(worker.status);
  if (worker.status.success()) return fmt::format("rank {}: finished", worker.rank);
  return fmt::format("rank {}: {}{}", worker.rank, how,
                     worker.on_its_own ? "" : ", after it was asked to stop");
}

/// The worker's last lines without those that repeat its error message.
std::vector<std::string> news(const std::vector<std::string>& last_lines,
                              const std::vector<std::string>& message) {
  std::vector<std::string> result;
  std::copy_if(
      last_lines.begin(), last_lines.end(), std::back_inserter(result), [&](const std::string& line) {
        return std::none_of(message.begin(), message.end(),
                            [&](const std::string& part) { return !part.empty() && line.ends_with(part); });
      });
  return result;
}

bool failed(const WorkerOutcome& worker) {
  return !worker.status.success() && !(worker.status == ExitStatus{to_int(ExitCode::kPreempted), 0});
}

/// Whether a signal of the launcher has ended it.
bool was_stopped(const WorkerOutcome& worker) {
  const ExitStatus& status = worker.status;
  return !worker.on_its_own && (status.signal == SIGTERM || status.signal == SIGINT ||
                                status.signal == SIGKILL || status == ExitStatus{128 + SIGTERM, 0} ||
                                status == ExitStatus{128 + SIGINT, 0});  // Shells report signals in this way.
}

}  // namespace

std::optional<WorkerError> read_worker_error(const std::filesystem::path& file) {
  std::error_code error;
  if (file.empty() || !std::filesystem::is_regular_file(file, error)) return std::nullopt;
  try {
    const auto document = parse_json(read_text_file(file, kLargestErrorFile));
    const nlohmann::json* message = &document.at("message");
    std::string kind;
    if (message->is_object()) {
      if (const auto extra = message->find("extraInfo"); extra != message->end() && extra->is_object())
        kind = extra->value("kind", "");
      message = &message->at("message");
    }
    return WorkerError{message->get<std::string>(), kind};
  } catch (const nlohmann::json::exception&) {
  } catch (const Error&) {
  }
  // The worker died while it wrote.
  return std::nullopt;
}

const WorkerOutcome* root_cause(const GroupOutcome& group) {
  const WorkerOutcome* cause = nullptr;
  for (const WorkerOutcome& worker : group.workers) {
    if (!worker.on_its_own || !failed(worker)) continue;
    if (cause == nullptr || worker.order < cause->order) cause = &worker;
  }
  // A worker that dies without an error file makes the others fail, and these have time to write one.
  if (cause == nullptr || write_time(cause->error_file) == kNever) return cause;
  // A worker that wrote its error file first may end after those that failed because of it.
  for (const WorkerOutcome& worker : group.workers) {
    const std::int64_t written = write_time(worker.error_file);
    // An error that was written after the request to stop may only report that request.
    if (!failed(worker) || (was_stopped(worker) && written >= group.stopped_at_ns.value_or(0))) continue;
    if (written < write_time(cause->error_file)) cause = &worker;
  }
  return cause;
}

std::int64_t time_of_failure(const WorkerOutcome& cause) {
  return std::min(cause.ended_at_ns, write_time(cause.error_file));
}

int restarts_without_progress(const GroupOutcome& group, const WorkerOutcome& cause) {
  if (!group.catches_stop_signals) return kUsualRestartsWithoutProgress;
  const std::optional<WorkerError> error = read_worker_error(cause.error_file);
  if (!error) {
    const ExitStatus& status = cause.status;
    const bool is_final = status.signal == 0 && (status.code == to_int(ExitCode::kUsage) ||
                                                 status.code == to_int(ExitCode::kCheckpointMissing) ||
                                                 status.code == to_int(ExitCode::kCheckpointCorrupt));
    return is_final ? 0 : kUsualRestartsWithoutProgress;
  }
  for (const ErrorKind kind :
       {ErrorKind::kUsage, ErrorKind::kMissing, ErrorKind::kCorrupt, ErrorKind::kDiverged}) {
    if (error->kind == name_of(kind)) return 0;
  }
  return error->kind == name_of(ErrorKind::kMemory) ? 1 : kUsualRestartsWithoutProgress;
}

bool found_corrupt(const GroupOutcome& group, const WorkerOutcome& cause) {
  if (!group.catches_stop_signals) return false;
  const std::optional<WorkerError> error = read_worker_error(cause.error_file);
  return error && error->kind == name_of(ErrorKind::kCorrupt);
}

bool is_asked_to_end(const GroupOutcome& group) {
  return group.interrupted_by != 0 || group.interrupted_late != 0 ||
         (group.catches_stop_signals && group.was_asked_to_save);
}

ExitCode exit_code_of_group(const GroupOutcome& group) {
  const auto all = [&](auto&& predicate) {
    return std::all_of(group.workers.begin(), group.workers.end(), predicate);
  };
  if (all([](const WorkerOutcome& w) { return w.status == ExitStatus{to_int(ExitCode::kPreempted), 0}; })) {
    return ExitCode::kPreempted;
  }
  if (root_cause(group) != nullptr || group.hang) return ExitCode::kWorkerFailed;
  // A training that was asked to stop in its last step has finished.
  const bool succeeded = all([](const WorkerOutcome& w) { return w.status.success(); });
  if (succeeded && group.catches_stop_signals) return ExitCode::kSuccess;
  if (group.interrupted_by != 0) return exit_code_of_signal(group.interrupted_by);
  return succeeded ? ExitCode::kSuccess : ExitCode::kWorkerFailed;
}

std::string failure_report(const GroupOutcome& group, const WorkerOutcome& cause, const std::string& host) {
  std::string report = fmt::format(
      "rank {} of {} failed: {}{}\n  host: {}, pid {}\n", cause.rank, group.world_size, text_of(cause.status),
      was_stopped(cause) ? ", since it was still ending when it was asked to stop"
                         : advice(cause.status, group.oom_kills),
      host, cause.pid);
  std::vector<std::string> message;
  if (const auto error = read_worker_error(cause.error_file)) {
    message = split(error->message, '\n');
    for (std::size_t i = 0; i < std::min(message.size(), kMessageLines); ++i) {
      report += fmt::format("{}{}\n", i == 0 ? "  error: " : "    ", shown(message[i], kMessageWidth));
    }
  }
  const std::vector<std::string> last_lines = news(cause.last_lines, message);
  if (!last_lines.empty()) {
    report += "  its last lines:\n";
    const std::size_t skip = last_lines.size() - std::min(last_lines.size(), kShownLines);
    for (std::size_t i = skip; i < last_lines.size(); ++i) {
      report += fmt::format("    | {}\n", shown(last_lines[i]));
    }
  }
  for (const std::string& error : group.gpu_errors)
    report += fmt::format("  the kernel's log: {}\n", shown(error));
  if (!cause.log.empty()) report += fmt::format("  log: {}\n", cause.log.string());
  std::size_t listed = 0;
  for (const WorkerOutcome& worker : group.workers) {
    if (&worker == &cause) continue;
    if (listed++ == kOtherRanks) {
      report += fmt::format("  and {} more ranks\n", group.workers.size() - 1 - kOtherRanks);
      break;
    }
    report += fmt::format("  {}\n", line_of(worker));
  }
  report.pop_back();
  return report;
}

}  // namespace accel::launch
