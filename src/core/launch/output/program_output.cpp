#include "core/launch/output/program_output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "base/files/fd.hpp"

namespace accel::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// A started program. The destructor kills it, unless it has ended.
class Started {
 public:
  explicit Started(pid_t pid) : pid_(pid) {}
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;
  ~Started() {
    if (has_ended_) return;
    ::kill(-pid_, SIGKILL);
    (void)ends_by(Clock::now() + std::chrono::seconds(1));
  }

  /// The status of waitpid(2) if the program has ended by then. It is 0 if the launcher has reaped the
  /// program among its other children; then the output tells whether it worked.
  [[nodiscard]] std::optional<int> ends_by(Clock::time_point until) {
    while (true) {
      int status = 0;
      const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
      if (ended != 0) {
        has_ended_ = true;
        return ended == pid_ ? status : 0;
      }
      if (Clock::now() >= until) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  pid_t pid_;
  bool has_ended_ = false;
};

/// Starts `command` with `out` as its stdout. Returns what posix_spawnp(3) returns.
int start(const std::vector<std::string>& command, int out, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const int failed = ::posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  return failed;
}

/// Reads until the end of the pipe. Returns whether it came in time.
bool read_all(int fd, Clock::time_point until, const std::function<bool()>& is_cancelled, std::string& text) {
  std::array<char, 1 << 14> buffer{};
  while (!is_cancelled()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left, 100))) <= 0) continue;
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count == 0) return true;
    if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) return true;
  }
  return false;
}

}  // namespace

ProgramOutput output_of(const std::vector<std::string>& command, std::chrono::milliseconds patience,
                        const std::function<bool()>& is_cancelled) {
  const Clock::time_point until = Clock::now() + patience;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  pid_t pid = -1;
  if (const int failed = start(command, write_end.get(), pid); failed != 0)
    return {failed == ENOENT ? ProgramOutput::End::kMissing : ProgramOutput::End::kFailed, {}};
  Started program(pid);
  write_end.reset();
  std::string text;
  const bool is_whole = read_all(read_end.get(), until, is_cancelled, text);
  const std::optional<int> status = is_whole ? program.ends_by(until) : std::nullopt;
  if (!status) return {ProgramOutput::End::kTooLate, {}};
  if (*status != 0 || text.empty()) return {ProgramOutput::End::kFailed, {}};
  return {ProgramOutput::End::kDone, std::move(text)};
}

}  // namespace accel::launch
