#pragma once

#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

namespace bench {

/// What a process has used so far.
struct Usage {
  double cpu_s = 0;
  std::uint64_t peak_bytes = 0;
};

/// The peak is that of this program alone, unlike that of getrusage(2), which counts what came before exec.
inline Usage usage() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  Usage found{seconds(used.ru_utime) + seconds(used.ru_stime)};
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) found.peak_bytes = std::stoull(line.substr(6)) * 1024;
  }
  return found;
}

/// A clock that all processes of this machine share.
inline std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Prints what a server has used since `before`, and when it ended.
inline void print_usage(const Usage& before) {
  const Usage after = usage();
  fmt::print(R"({{"end_ns": {}, "cpu_s": {:.4f}, "peak_bytes": {}}})"
             "\n",
             now_ns(), after.cpu_s - before.cpu_s, after.peak_bytes - before.peak_bytes);
  std::fflush(stdout);
}

/// Prints the times and the bytes of connections in both directions. `again` is how many had to come again.
inline void print_arrivals(std::int64_t begin_ns, const std::vector<int>& sockets, int again) {
  const std::int64_t end_ns = now_ns();
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (const int socket : sockets) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    sent += info.tcpi_bytes_acked;
    received += info.tcpi_bytes_received;
  }
  fmt::print(R"({{"begin_ns": {}, "end_ns": {}, "sent": {}, "received": {}, "again": {}, "cpu_s": {:.4f}}})"
             "\n",
             begin_ns, end_ns, sent, received, again, usage().cpu_s);
  std::fflush(stdout);
}

}  // namespace bench
