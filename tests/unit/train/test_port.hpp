#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <stdexcept>

namespace accel::train::testing {

/// Returns a free port, another one at each call, on which rank 0 listens. It is not one of the ports that
/// the kernel gives to outgoing connections (net.ipv4.ip_local_port_range), because any of them may be taken
/// at any moment.
inline int test_port() {
  static std::atomic<int> calls{0};
  constexpr int kFirst = 10000;
  int outgoing = 32768;  // The first port for outgoing connections.
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> outgoing;
  const int ports = outgoing - kFirst;
  for (int tried = 0; tried < ports; ++tried) {
    // Tests run at the same time, in processes with similar numbers.
    const int port = kFirst + (::getpid() * 97 + calls++) % ports;
    const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<std::uint16_t>(port));
    const bool is_free = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    if (is_free) return port;
  }
  throw std::runtime_error("no port below those of outgoing connections is free");
}

}  // namespace accel::train::testing
