#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

namespace accel::train::testing {

/// Returns a free port, another one at each call, on which rank 0 listens. A socket holds it until this
/// process ends, so that the kernel gives it to nobody who asks for any port (docs/design/029).
inline int test_port() {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t size = sizeof address;
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::system_error(errno, std::generic_category(), "no port is free");
  return ntohs(address.sin6_port);
}

}  // namespace accel::train::testing
