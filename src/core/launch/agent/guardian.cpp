#include "core/launch/agent/guardian.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "base/host/system.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "core/launch/agent/flight_home.hpp"
#include "core/launch/agent/process.hpp"

namespace accel::launch {
namespace {

constexpr pid_t kAllIsWell = 0;

/// Kills every process of this user whose environment has `mark`. Returns whether there was one.
bool kill_marked(const std::string& mark) {
  bool found = false;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto pid = parse_int<pid_t>(entry.path().filename().string());
    if (!pid || *pid == ::getpid()) continue;
    if (kernel_text(entry.path() / "environ").value_or("").find(mark) == std::string::npos) continue;
    found = ::kill(*pid, SIGKILL) == 0 || found;
  }
  return found;
}

[[noreturn]] void guard(int fd, const std::string& run_id, const std::filesystem::path& scratch) {
  ::setsid();
  ::prctl(PR_SET_NAME, "accel-guardian");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  // Other processes may wait for the end of these descriptors, so they must not stay open here.
  close_all_but(fd);

  std::set<pid_t> groups;
  pid_t message = 0;
  while (true) {
    const ssize_t got = ::read(fd, &message, sizeof message);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof message) break;
    if (message == kAllIsWell) ::_exit(0);
    if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  // A process may fork before it dies, so search several times.
  constexpr int kRounds = 20;
  // The folder is this launcher's own. Another one of the same run may have taken its place.
  const std::string mark = scratch.empty() ? "TORCHELASTIC_RUN_ID=" + run_id + '\0'
                                           : "TORCHELASTIC_ERROR_FILE=" + scratch.string() + '/';
  for (int round = 0; round < kRounds && kill_marked(mark); ++round) ::usleep(10'000);
  keep_flight_records(scratch);
  std::error_code ignored;
  if (!scratch.empty()) std::filesystem::remove_all(scratch, ignored);
  ::_exit(0);
}

/// Closes the descriptors from `first` to `last`. glibc has close_range(2) since 2.34, and Linux since 5.9.
void close_from_to(unsigned first, unsigned last) {
  if (first > last || ::syscall(SYS_close_range, first, last, 0) == 0) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  // The limit may have been lowered, and it may be infinite; this is how many the kernel allows by default.
  constexpr rlim_t kMost = 1 << 20;
  const rlim_t end = std::min({limit.rlim_max, kMost, rlim_t{last} + 1});
  for (rlim_t fd = first; fd < end; ++fd) ::close(static_cast<int>(fd));
}

}  // namespace

void close_all_but(int kept) {
  std::vector<int> open;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
       entry.increment(error))
    open.push_back(std::atoi(entry->path().filename().c_str()));
  if (error) {
    if (kept > 0) close_from_to(0, static_cast<unsigned>(kept) - 1);
    close_from_to(static_cast<unsigned>(kept) + 1, std::numeric_limits<unsigned>::max());
    return;
  }
  for (const int fd : open) {
    if (fd != kept) ::close(fd);
  }
}

Guardian::Guardian(const std::string& run_id, const std::filesystem::path& scratch) {
  Pipe pipe = make_pipe();
  pid_ = ::fork();
  if (pid_ < 0) throw system_error("start", "the guardian process", errno);
  if (pid_ == 0) {
    pipe.write.reset();
    guard(pipe.read.get(), run_id, scratch);
  }
  pipe_ = std::move(pipe.write);
}

Guardian::~Guardian() {
  [[maybe_unused]] const ssize_t told = ::write(pipe_.get(), &kAllIsWell, sizeof kAllIsWell);
  // The guardian may be stopped, for example by `pkill -STOP accel`.
  constexpr auto kPatience = std::chrono::seconds(2);
  ::kill(pid_, SIGCONT);
  if (reap_within(pid_, kPatience)) return;
  ::kill(pid_, SIGKILL);
  if (!reap_within(pid_, kPatience)) log::warn(fmt::format("the guardian process {} cannot be killed", pid_));
}

void Guardian::unwatch(pid_t group) {
  const pid_t message = -group;
  [[maybe_unused]] const ssize_t told = ::write(pipe_.get(), &message, sizeof message);
}

}  // namespace accel::launch
