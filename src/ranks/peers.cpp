#include "ranks/peers.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "base/error.hpp"

namespace accel {

ProcessIdentity ProcessIdentity::self() {
  ProcessIdentity identity;
  identity.pid = ::getpid();
  struct stat status {};
  if (::stat("/proc/self/ns/pid", &status) != 0) throw system_error("read", "/proc/self/ns/pid", errno);
  identity.pid_namespace = status.st_ino;
  if (!(std::ifstream("/proc/sys/kernel/random/boot_id") >> identity.boot))
    throw system_error("read", "/proc/sys/kernel/random/boot_id", errno);
  return identity;
}

std::string ProcessIdentity::text() const { return fmt::format("{} {} {}", pid, pid_namespace, boot); }

ProcessIdentity ProcessIdentity::from(const std::string& text) {
  ProcessIdentity identity;
  std::array<char, 64> boot{};
  unsigned long long pid_namespace = 0;
  if (std::sscanf(text.c_str(), "%d %llu %63s", &identity.pid, &pid_namespace, boot.data()) != 3)
    throw Error(ErrorKind::kFailure, fmt::format("'{}' does not identify a process", text));
  identity.pid_namespace = pid_namespace;
  identity.boot = boot.data();
  return identity;
}

PeerWatch::PeerWatch(std::span<const ProcessIdentity> processes, int own_rank) {
  const ProcessIdentity& self = processes[static_cast<std::size_t>(own_rank)];
  fds_.resize(processes.size());
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    const ProcessIdentity& process = processes[rank];
    pids_.push_back(process.pid);
    if (process.boot != self.boot)
      throw Error(ErrorKind::kFailure, fmt::format("rank {} is on another machine", rank));
    if (process.pid_namespace != self.pid_namespace)
      throw Error(ErrorKind::kFailure, fmt::format("rank {} is in another container", rank));
    if (static_cast<int>(rank) == own_rank) continue;
    fds_[rank] = Fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
    if (!fds_[rank])
      throw system_error(fmt::format("watch rank {}, process", rank), fmt::format("{}", process.pid), errno);
  }
}

std::optional<int> PeerWatch::ended() const {
  std::vector<pollfd> polls;
  polls.reserve(fds_.size());
  // poll ignores a descriptor of -1.
  for (const Fd& fd : fds_) polls.push_back({fd.get(), POLLIN, 0});
  if (::poll(polls.data(), polls.size(), 0) <= 0) return std::nullopt;
  for (std::size_t rank = 0; rank < polls.size(); ++rank) {
    if (polls[rank].revents != 0) return static_cast<int>(rank);
  }
  return std::nullopt;
}

}  // namespace accel
