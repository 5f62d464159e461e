#include "core/launch/rank_statuses.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/host/host_name.hpp"
#include "base/host/system.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "core/launch/agent/process.hpp"
#include "core/launch/hang/outside.hpp"

namespace accel::launch {
namespace {

namespace fs = std::filesystem;

constexpr auto kPatience = std::chrono::seconds(20);

constexpr std::uint64_t kMostStackBytes = 64 << 20;

/// The contents of a file of a run, which may be anything; empty if it is not a regular file.
std::string text_of_run(const fs::path& path) {
  try {
    return read_text_file(path, kMostStackBytes);
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) throw;
    return "";
  }
}

std::optional<std::string> environment_of(pid_t pid) {
  return kernel_text(fmt::format("/proc/{}/environ", pid));
}

/// A variable of a process; nothing if it does not have it, or may not be read.
std::optional<std::string> variable_of(pid_t pid, const std::string& name) {
  for (const std::string& variable : split(environment_of(pid).value_or(""), '\0')) {
    if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
  }
  return std::nullopt;
}

/// The file that a process means by `path`.
fs::path from_its_place(pid_t pid, const fs::path& path) {
  std::error_code error;
  const fs::path folder = fs::read_symlink(fmt::format("/proc/{}/cwd", pid), error);
  return path.is_absolute() || error ? path : folder / path;
}

/// The number behind `prefix` in a name; -1 if it is another name.
int number_behind(const std::string& prefix, const std::string& name) {
  int number = -1;
  if (name.starts_with(prefix))
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
  return number;
}

std::vector<fs::path> subfolders(const fs::path& folder, const std::string& prefix) {
  std::vector<std::pair<int, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const int number = number_behind(prefix, entry->path().filename().string());
    if (number >= 0) found.emplace_back(number, entry->path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> folders;
  for (auto& [number, path] : found) folders.push_back(std::move(path));
  return folders;
}

/// The flight records in a directory: those of its newest attempt.
std::vector<fs::path> records_in(const fs::path& target) {
  fs::path folder = fs::is_directory(target / "logs") ? target / "logs" : target;
  if (const auto attempts = subfolders(folder, "attempt_"); !attempts.empty()) folder = attempts.back();
  std::vector<fs::path> records;
  for (const fs::path& rank : subfolders(folder, "rank_")) {
    const fs::path record = rank / (rank.filename().string() + ".flight");
    if (fs::exists(fs::symlink_status(record))) records.push_back(record);
  }
  return records;
}

/// Removes records that are links to nothing from here, and names their ranks in the log.
void leave_out_those_elsewhere(std::vector<fs::path>& records) {
  std::vector<int> ranks;
  std::erase_if(records, [&ranks](const fs::path& record) {
    if (fs::exists(record)) return false;
    ranks.push_back(number_behind("rank_", record.stem().string()));
    return true;
  });
  if (ranks.empty()) return;
  const std::string who = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
  const std::string where =
      "on another machine, if it runs there, or without a record: none was kept when the run ended, as on a "
      "full disk, or it was lost with its launcher";
  if (records.empty())
    throw Error(ErrorKind::kMissing, fmt::format("{}: {}", who, where)).hint("call `accel doctor` there");
  log::warn(fmt::format("{} left out: {}; call `accel doctor` there, too", who, where));
}

/// The records of a launcher's ranks, or of the rank that `pid` is.
std::vector<fs::path> records_of(pid_t pid) {
  std::vector<fs::path> records;
  const auto add = [&](pid_t process) {
    if (const auto path = variable_of(process, kFlightVariable))
      records.push_back(from_its_place(process, *path));
  };
  for (const pid_t child : child_processes(pid)) add(child);
  if (records.empty()) add(pid);
  return records;
}

/// Whether the process is still the one that the record is of. The environment of another user's process
/// cannot be read: there the process and the record must belong to the same user.
bool runs(const FlightRecord& record, const fs::path& path) {
  if (record.pid <= 0 || record.host != host_name()) return false;
  if (::kill(record.pid, 0) != 0 && errno != EPERM) return false;
  if (is_zombie(record.pid)) return false;
  if (!environment_of(record.pid)) {
    struct stat process {};
    struct stat file {};
    // A /proc that hides the processes of others (hidepid) says no more than kill().
    if (::stat(fmt::format("/proc/{}", record.pid).c_str(), &process) != 0) return true;
    return ::stat(path.c_str(), &file) == 0 && process.st_uid == file.st_uid;
  }
  const auto own = variable_of(record.pid, kFlightVariable);
  std::error_code error;
  return own && fs::equivalent(from_its_place(record.pid, *own), path, error) && !error;
}

/// When a file was written, in nanoseconds since 1970; 0 if it has nothing.
std::int64_t write_time_of(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || info.st_size == 0) return 0;
  return std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

RankStatus status_of_rank(const fs::path& path) {
  RankStatus status;
  if (auto record = read_flight_record(path)) status.record = std::move(*record);
  const fs::path folder = path.parent_path();
  std::int64_t last = std::max(write_time_of(folder / "stdout.log"), write_time_of(folder / "stderr.log"));
  status.seen_ns = nanoseconds_since_1970();
  if (runs(status.record, path)) {
    status.state = state_of_process(status.record.pid);
    if (status.state.empty()) status.state = "alive, and another user's";
    if (last > 0) status.silent_s = static_cast<double>(status.seen_ns - last) / 1e9;
    return status;
  }
  if (status.record.host != host_name()) status.state = "on another machine, which is not seen from here";
  // Times count to the last that is known of it.
  for (const FlightEvent& event : status.record.events)
    last = std::max({last, event.begun_ns, event.waited_ns, event.ended_ns});
  if (const std::int64_t looked = write_time_of(folder / "stacks.txt"); looked > 0) {
    last = std::max(last, looked);
    status.stacks = text_of_run(folder / "stacks.txt");
    status.stacks_file = (folder / "stacks.txt").string();
  }
  if (status.state.empty()) status.seen_ns = last;
  return status;
}

}  // namespace

std::vector<RankStatus> find_rank_statuses(const std::string& target) {
  const pid_t pid = parse_int<pid_t>(target).value_or(-1);
  std::vector<fs::path> records;
  if (fs::is_directory(target)) {
    records = records_in(target);
    if (records.empty()) {
      throw Error(ErrorKind::kMissing, fmt::format("'{}' has no flight record of a rank", target))
          .hint("give the output_dir of a run, its log directory, or the number of the launcher's process");
    }
    leave_out_those_elsewhere(records);
  } else if (pid > 0 && fs::exists(fmt::format("/proc/{}", pid))) {
    records = records_of(pid);
    if (records.empty())
      throw Error(ErrorKind::kMissing,
                  fmt::format("process {} is neither a launcher with ranks nor a rank, or "
                              "belongs to another user",
                              pid));
  } else {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' is neither a directory nor a process", target));
  }
  std::vector<RankStatus> statuses;
  for (const fs::path& record : records) statuses.push_back(status_of_rank(record));
  std::sort(statuses.begin(), statuses.end(),
            [](const RankStatus& a, const RankStatus& b) { return a.record.rank < b.record.rank; });
  return statuses;
}

void take_stacks(std::vector<RankStatus>& statuses) {
  const std::atomic<bool> never = false;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (RankStatus& status : statuses) {
    const bool is_here = status.record.host == host_name() && !status.state.empty();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (is_here) status.stacks = stacks_of_process(status.record.pid, left, never);
  }
}

nlohmann::ordered_json document_of(const RankStatus& status) {
  const FlightRecord& record = status.record;
  auto events = nlohmann::ordered_json::array();
  for (const FlightEvent& event : record.events) {
    events.push_back({{"number", event.number},
                      {"operation", text_of(event.op)},
                      {"unit", as_utf8(event.unit)},
                      {"group", as_utf8(event.group.name)},
                      {"number_in_group", event.in_group},
                      {"bytes", event.bytes},
                      {"begun_ns", event.begun_ns},
                      {"waited_ns", event.waited_ns},
                      {"ended_ns", event.ended_ns}});
  }
  return {{"rank", record.rank},
          {"host", as_utf8(record.host)},
          {"pid", record.pid},
          {"step", record.step},
          {"state", as_utf8(status.state)},
          {"runs", status.silent_s >= 0 || !status.state.empty()},
          {"events", std::move(events)},
          {"stacks", as_utf8(status.stacks)}};
}

}  // namespace accel::launch
