#include "report/command_sink.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace accel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostPending = 16 << 20;
/// A killed process ends at once, unless it waits for a file server.
constexpr std::chrono::seconds kPatienceWithKill{1};

/// This process's environment with two variables more.
std::vector<std::string> environment_with(const std::filesystem::path& output_dir, std::int64_t first_step) {
  std::vector<std::string> variables = {
      fmt::format("ACCEL_OUTPUT_DIR={}", std::filesystem::absolute(output_dir).string()),
      fmt::format("ACCEL_FIRST_STEP={}", first_step)};
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  return variables;
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// The descriptors behind the standard ones that a program which this process starts would inherit: libraries
/// and streams of C++ open some without FD_CLOEXEC.
std::vector<int> inherited_descriptors() {
  std::vector<int> inherited;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    const int fd = parse_int(entry->path().filename().string()).value_or(-1);
    const int flags = ::fcntl(fd, F_GETFD);
    if (fd > STDERR_FILENO && flags >= 0 && (flags & FD_CLOEXEC) == 0) inherited.push_back(fd);
  }
  return inherited;
}

/// Starts `command` with `input` as its standard input and no other descriptor of this process than the
/// outputs: it could hold open a file of the run, or a connection, for longer than the run lives. Returns
/// what posix_spawnp(3) returns. The signals by which the run is asked to save stay blocked: they reach the
/// group of the worker, and the command is to get the last records, too.
int start(const std::vector<std::string>& command, const std::vector<std::string>& environment, int input,
          pid_t& pid) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const int fd : inherited_descriptors()) ::posix_spawn_file_actions_addclose(&actions, fd);
  ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  const int failed = ::posix_spawnp(&pid, command.front().c_str(), &actions, nullptr,
                                    pointers_to(command).data(), pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  return failed;
}

/// The status of waitpid(2) once the process has ended; nothing if it has not by then.
std::optional<int> end_of(pid_t pid, Clock::time_point until) {
  while (true) {
    int status = 0;
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == pid) return status;
    if (ended < 0 && errno != EINTR) return 0;
    if (Clock::now() >= until) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

CommandSink::~CommandSink() = default;

void CommandSink::open(std::int64_t step) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw system_error("create", "the input of training.metrics.command", errno);
  input_ = Fd(ends[0]);
  const Fd theirs(ends[1]);
  // The command only reads.
  ::shutdown(input_.get(), SHUT_RD);
  const std::vector<std::string> environment = environment_with(output_dir_, step + 1);
  if (const int failed = start(command_, environment, theirs.get(), pid_); failed != 0)
    throw system_error("start", command_.front(), failed);
}

void CommandSink::write(const Metrics& metrics) {
  if (!input_) return;
  pending_ += metrics.dump();
  pending_ += '\n';
  push();
  if (pending_.size() > kMostPending) give_up("does not read what it gets");
}

void CommandSink::push() {
  while (input_ && !pending_.empty()) {
    const ssize_t sent = ::send(input_.get(), pending_.data(), pending_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      pending_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      give_up("reads no more");
    }
  }
}

void CommandSink::give_up(std::string_view why) {
  log::warn(fmt::format("training.metrics.command: '{}' {}; the training goes on without it",
                        command_.front(), why));
  input_.reset();
  pending_.clear();
}

void CommandSink::close(std::chrono::seconds patience) {
  if (pid_ < 0) return;
  const auto until = Clock::now() + patience;
  while (input_ && !pending_.empty() && Clock::now() < until) {
    pollfd ready{input_.get(), POLLOUT, 0};
    ::poll(&ready, 1, 100);
    push();
  }
  input_.reset();
  const std::optional<int> status = end_of(pid_, until);
  if (!status) {
    // The launcher would kill it when the rank has ended. The stop signals are blocked in it.
    ::kill(pid_, SIGKILL);
    (void)end_of(pid_, Clock::now() + kPatienceWithKill);
    log::warn(fmt::format("training.metrics.command: '{}' has not ended {} s after the run, and is killed",
                          command_.front(), patience.count()));
  } else if (*status != 0) {
    log::warn(fmt::format("training.metrics.command: '{}' has failed ({})", command_.front(),
                          WIFSIGNALED(*status) ? fmt::format("signal {}", WTERMSIG(*status))
                                               : fmt::format("exit code {}", WEXITSTATUS(*status))));
  }
  pid_ = -1;
}

}  // namespace accel
