#include "core/launch/agent/outside.hpp"

#include <cxxabi.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "base/text.hpp"
#include "core/launch/agent/pipe.hpp"

namespace accel::launch {
namespace {

using Clock = std::chrono::steady_clock;

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

/// The value of a line `name:` of /proc/PID/status.
std::string field_of(const std::string& status, const std::string& name) {
  for (const std::string& line : split(status, '\n')) {
    if (!line.starts_with(name + ":")) continue;
    return std::string(trimmed(std::string_view(line).substr(name.size() + 1)));
  }
  return "";
}

/// What a program of PATH prints; nothing if it does not end with 0 within `patience`. `exists` gets whether
/// there is such a program.
std::optional<std::string> output_of(const std::vector<std::string>& command,
                                     std::chrono::milliseconds patience, const std::atomic<bool>& cancelled,
                                     bool& exists) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int failed = ::posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  exists = failed != ENOENT;
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return std::nullopt;
  write_end.reset();
  std::string text;
  std::array<char, 1 << 14> buffer{};
  const Clock::time_point until = Clock::now() + patience;
  bool ended = false;
  while (!ended) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0 || cancelled) break;
    pollfd ready{read_end.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left, 100))) == 0) continue;
    const ssize_t count = ::read(read_end.get(), buffer.data(), buffer.size());
    if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
    ended = count <= 0;
  }
  if (!ended) ::kill(pid, SIGKILL);
  // The launcher may have reaped it among its other children; then its output tells whether it worked.
  int status = 0;
  const bool failed_by_status = ::waitpid(pid, &status, 0) == pid && status != 0;
  if (!ended || failed_by_status || text.empty()) return std::nullopt;
  return text;
}

/// The name of a function as it is written in C++.
std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : name;
}

/// The output of eu-stack with names as in C++.
std::string with_names(const std::string& stacks) {
  std::string text;
  for (const std::string& line : split(stacks, '\n')) {
    const std::size_t name = line.find("_Z");
    text += (name == std::string::npos ? line : line.substr(0, name) + demangled(line.substr(name))) + '\n';
  }
  return text;
}

bool is_python(pid_t pid) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), error);
  return !error && program.filename().string().starts_with("python");
}

}  // namespace

std::string state_of_process(pid_t pid) {
  const std::string status = text_of_file(fmt::format("/proc/{}/status", pid));
  std::string state = field_of(status, "State");
  if (state.empty()) return "";
  if (const std::size_t open = state.find('('); open != std::string::npos)
    state = state.substr(open + 1, state.find(')') - open - 1);
  const std::string channel = text_of_file(fmt::format("/proc/{}/wchan", pid));
  if (!channel.empty() && channel != "0") state += " in " + channel;
  if (const std::string threads = field_of(status, "Threads"); !threads.empty())
    state += fmt::format(", {} thread{}", threads, threads == "1" ? "" : "s");
  if (const long kib = std::atol(field_of(status, "VmRSS").c_str()); kib > 0)
    state += ", " + format_bytes(static_cast<std::uint64_t>(kib) * 1024);
  return state;
}

std::string stacks_of_process(pid_t pid, std::chrono::milliseconds patience,
                              const std::atomic<bool>& cancelled) {
  const Clock::time_point until = Clock::now() + patience;
  const std::string id = std::to_string(pid);
  std::vector<std::vector<std::string>> tools = {
      {"eu-stack", "-p", id}, {"gdb", "-p", id, "-batch", "-nx", "-ex", "thread apply all -ascending bt"}};
  if (is_python(pid)) tools.insert(tools.begin(), {"py-spy", "dump", "--pid", id});
  bool found = false;
  for (const std::vector<std::string>& tool : tools) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) break;
    bool exists = false;
    const auto text = output_of(tool, left, cancelled, exists);
    found |= exists;
    if (text) return tool[0] == "eu-stack" ? with_names(*text) : *text;
  }
  if (cancelled) return "";
  return found ? "no stack: this process may not be traced, or it took too long\n"
               : "no stack: install elfutils (eu-stack), gdb or py-spy\n";
}

std::vector<std::string> first_stack(const std::string& stacks, std::size_t most) {
  std::vector<std::string> lines;
  bool begun = false;
  for (const std::string& line : split(stacks, '\n')) {
    std::string text(trimmed(line));
    const bool is_frame = text.starts_with("#") || (line.starts_with("    ") && !text.empty());
    if (begun && !is_frame) break;
    if (!is_frame) {
      if (text.starts_with("no stack")) return {text};
      continue;
    }
    begun = true;
    // "#3  0x00007f... function" of eu-stack.
    if (const std::size_t address = text.find(" 0x"); text.starts_with("#") && address != std::string::npos) {
      const std::size_t end = text.find(' ', address + 1);
      text = end == std::string::npos ? "(unknown)" : text.substr(end + 1);
      if (text.starts_with("in ")) text.erase(0, 3);
    }
    if (lines.size() < most) lines.push_back(std::move(text));
  }
  return lines;
}

}  // namespace accel::launch
