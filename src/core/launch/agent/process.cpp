#include "core/launch/agent/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/host/process_state.hpp"
#include "base/host/threads.hpp"
#include "base/signal_name.hpp"

namespace accel::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPipeBytes = 1 << 20;

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// A set of CPUs as sched_setaffinity(2) takes it, in whole words.
std::vector<unsigned long> bits_of(const std::vector<int>& cpus) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> words;
  for (const int cpu : cpus) {
    const auto bit = static_cast<std::size_t>(cpu);
    if (words.size() <= bit / kBits) words.resize(bit / kBits + 1);
    words[bit / kBits] |= 1UL << (bit % kBits);
  }
  return words;
}

struct Prepared {
  std::vector<unsigned long> cpus;
  std::vector<char*> argv;
  std::vector<char*> envp;
  int in_fd;
  bool has_session;
  int out_fd;
  int err_fd;
  int failure_fd;
  pid_t parent;
};

sigset_t mask_of(const SpawnRequest& request) {
  sigset_t mask;
  ::sigemptyset(&mask);
  if (!request.blocks_stop_signals) return mask;
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) ::sigaddset(&mask, signal);
  return mask;
}

/// Runs in the child; only async-signal-safe calls.
[[noreturn]] void become(const SpawnRequest& request, const Prepared& p) {
  p.has_session ? static_cast<void>(::setsid()) : static_cast<void>(::setpgid(0, 0));
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Where only parents may trace their children, the launcher's tools may take this process's stacks.
  ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(p.parent), 0, 0, 0);
  if (!p.cpus.empty())
    ::syscall(SYS_sched_setaffinity, 0, p.cpus.size() * sizeof(unsigned long), p.cpus.data());
  // The parent may have died before the line above took effect.
  if (::getppid() != p.parent) ::_exit(127);
  const pid_t self = ::getpid();
  if (request.announce_fd >= 0 && ::write(request.announce_fd, &self, sizeof self) != sizeof self)
    ::_exit(127);
  ::dup2(p.in_fd, STDIN_FILENO);
  ::dup2(p.out_fd, STDOUT_FILENO);
  ::dup2(p.err_fd, STDERR_FILENO);
  const sigset_t mask = mask_of(request);
  reset_signals(&mask);
  ::execve(p.argv[0], p.argv.data(), p.envp.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t told = ::write(p.failure_fd, &error, sizeof error);
  ::_exit(127);
}

void make_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

/// Whether the child ends within `patience`. It is not reaped.
bool ends_within(pid_t child, Clock::duration patience) {
  const Clock::time_point give_up = Clock::now() + patience;
  while (true) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT | WNOHANG) != 0) return false;
    if (info.si_pid == child) return true;
    if (Clock::now() >= give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Returns a descriptor that becomes readable once the child has ended. pidfd_open(2) needs Linux 5.3, and
/// some containers refuse it: there a thread waits for the end, and then closes a pipe.
Fd watch_end(pid_t child) {
  if (Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0))); pidfd) return pidfd;
  Pipe pipe = make_pipe();
  auto held = std::make_shared<Fd>(std::move(pipe.write));
  thread_without_signals([child, held] {
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
  }).detach();
  return std::move(pipe.read);
}

std::string signal_text(int signal) {
  const char* name = signal_name(signal);
  if (name == nullptr) return fmt::format("signal {}", signal);
  return fmt::format("SIG{} ({})", name, ::strsignal(signal));
}

}  // namespace

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("create", "a pipe", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

Child spawn(const SpawnRequest& request) {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe failure = make_pipe();
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Prepared prepared{bits_of(request.cpus),
                          pointers_to(request.command),
                          pointers_to(request.environment),
                          request.stdin_fd >= 0 ? request.stdin_fd : null.get(),
                          request.stdin_fd >= 0 && ::isatty(request.stdin_fd) != 0,
                          out.write.get(),
                          err.write.get(),
                          failure.write.get(),
                          ::getpid()};
  Child child;
  child.pid = ::fork();
  if (child.pid < 0) throw system_error("start", request.command[0], errno);
  if (child.pid == 0) become(request, prepared);
  failure.write.reset();
  int error = 0;
  // The child has its process group by now, because it made it before it executed the program.
  if (::read(failure.read.get(), &error, sizeof error) == sizeof error) {
    ::waitpid(child.pid, nullptr, 0);
    throw Error(ErrorKind::kUsage,
                fmt::format("cannot run '{}': {}", request.command[0], std::strerror(error)))
        .hint(error == ENOEXEC ? "a script begins with a line such as #!/bin/sh" : "");
  }
  try {
    child.pidfd = watch_end(child.pid);
  } catch (...) {
    kill_with_group(child.pid);
    throw;
  }
  ::fcntl(out.read.get(), F_SETPIPE_SZ, kPipeBytes);
  ::fcntl(err.read.get(), F_SETPIPE_SZ, kPipeBytes);
  make_nonblocking(out.read.get());
  make_nonblocking(err.read.get());
  child.out = std::move(out.read);
  child.err = std::move(err.read);
  return child;
}

std::string text_of(const ExitStatus& status) {
  if (!status.known) return "the exit status is not known";
  if (status.signal != 0) return fmt::format("killed by {}", signal_text(status.signal));
  // Shells and Python's launchers report the signal of a child like this.
  if (status.code > 128 && signal_name(status.code - 128) != nullptr) {
    return fmt::format("exit code {} (128 + SIG{})", status.code, signal_name(status.code - 128));
  }
  return fmt::format("exit code {}", status.code);
}

ExitStatus reap_with_group(pid_t leader, std::chrono::milliseconds patience) {
  const bool ended = ends_within(leader, patience);
  ::kill(-leader, SIGKILL);
  siginfo_t info{};
  if (!ended || ::waitid(P_PID, static_cast<id_t>(leader), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid != leader)
    return {.known = false};
  return info.si_code == CLD_EXITED ? ExitStatus{info.si_status, 0} : ExitStatus{0, info.si_status};
}

bool kill_with_group(pid_t leader, std::chrono::milliseconds patience) {
  ::kill(-leader, SIGKILL);
  return reap_with_group(leader, patience).known;
}

std::vector<std::string> merged_environment(const Variables& variables) {
  std::vector<std::string> merged;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!variables.contains(std::string(text.substr(0, text.find('='))))) merged.emplace_back(text);
  }
  for (const auto& [name, value] : variables) merged.push_back(fmt::format("{}={}", name, value));
  return merged;
}

std::string text_of_process(pid_t pid) {
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return fmt::format("{} ({})", pid, name);
}

std::vector<pid_t> child_processes(pid_t parent) {
  std::vector<pid_t> pids;
  std::ifstream list(parent == 0 ? fmt::format("/proc/self/task/{}/children", ::getpid())
                                 : fmt::format("/proc/{0}/task/{0}/children", parent));
  for (pid_t pid = 0; list >> pid;) pids.push_back(pid);
  return pids;
}

void reap_adopted_children(const IsSpared& is_spared) {
  for (const pid_t pid : child_processes()) {
    if (!is_spared(pid)) ::waitpid(pid, nullptr, WNOHANG);
  }
}

void wait_until_stopped(pid_t child) {
  constexpr auto kLongestStop = std::chrono::seconds(1);
  const Clock::time_point give_up = Clock::now() + kLongestStop;
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED | WEXITED | WNOWAIT | WNOHANG) == 0 &&
         info.si_pid != child && Clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool reap_within(pid_t child, std::chrono::milliseconds patience) {
  return ends_within(child, patience) && ::waitpid(child, nullptr, WNOHANG) == child;
}

std::vector<pid_t> kill_adopted_children(const IsSpared& is_spared, std::chrono::milliseconds patience) {
  // Each process has `patience` from its own SIGKILL; the total is limited, because processes may fork for
  // ever.
  const Clock::time_point give_up = Clock::now() + 3 * patience;
  std::map<pid_t, Clock::time_point> killed;
  // The children of a killed process become children of this one, so repeat until there are none.
  while (true) {
    reap_adopted_children(is_spared);
    const Clock::time_point now = Clock::now();
    std::vector<pid_t> left;
    bool waits = false;
    for (const pid_t pid : child_processes()) {
      if (is_spared(pid)) continue;
      left.push_back(pid);
      const auto [since, is_new] = killed.emplace(pid, now);
      if (is_new) ::kill(pid, SIGKILL);
      waits = waits || now - since->second < patience;
    }
    if (!waits || now >= give_up) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace accel::launch
