#include "core/launch/world/port.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "core/launch/world/address.hpp"

namespace accel::launch {
namespace {

/// Binds a socket to `port` (0: any) of every address. Without a socket, errno says why.
Fd bound_socket(int port) {
  const int on = 1;
  const int off = 0;
  // The machine may have no IPv6.
  for (const sa_family_t family : {sa_family_t{AF_INET6}, sa_family_t{AF_INET}}) {
    Fd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) continue;
    // The socket binds as the store of c10d does: both families, and despite connections in TIME_WAIT.
    if (family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    Address any = any_address(family);
    port_of(any) = htons(static_cast<std::uint16_t>(port));
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&any.storage), any.size) == 0) return fd;
    if (errno == EADDRINUSE || errno == EACCES) return Fd();
  }
  return Fd();
}

int number_of(const Fd& socket) {
  Address address;
  address.size = sizeof address.storage;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0)
    throw system_error("read", "the number of a port", errno);
  return ntohs(port_of(address));
}

/// The abstract socket address by which the launchers of all users exclude each other from `port`. Like the
/// port it belongs to the network namespace. It is gone with the process that has bound it.
std::pair<sockaddr_un, socklen_t> name_of(int port) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("accel-launch-port-{}", port);
  // The first byte of an abstract name is zero.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

/// Takes the name of `port`; none if another launcher has it.
Fd take_name(int port) {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto [address, size] = name_of(port);
  if (!fd) throw system_error("create", "a socket", errno);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    if (errno == EADDRINUSE) return Fd();
    throw system_error("take", fmt::format("the name of port {}", port), errno);
  }
  // A listener tells who it is to those that connect. Nobody accepts them, so all of them stay in the queue.
  ::listen(fd.get(), SOMAXCONN);
  return fd;
}

/// ", that of process 4711": the launcher that has the name of `port`; empty if this process cannot see it.
std::string holder_of(int port) {
  const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto [address, size] = name_of(port);
  ucred holder{};
  socklen_t holder_size = sizeof holder;
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &holder, &holder_size) != 0 || holder.pid == 0)
    return "";
  return fmt::format(", that of process {}", holder.pid);
}

}  // namespace

PortHold::PortHold(Fd name, Fd socket, int port)
    : name_(std::move(name)), socket_(std::move(socket)), port_(port) {}

PortHold PortHold::any() {
  while (true) {
    Fd socket = bound_socket(0);
    if (!socket) throw system_error("find", "a free port", errno);
    const int port = number_of(socket);
    // Another launcher that asks for this port may have taken the name, and not yet the port.
    if (Fd name = take_name(port)) return {std::move(name), std::move(socket), port};
  }
}

PortHold PortHold::of(int port) {
  Fd name = take_name(port);
  if (!name)
    throw Error(ErrorKind::kUsage, fmt::format("port {} belongs to another run{}", port, holder_of(port)));
  Fd socket = bound_socket(port);
  if (!socket) {
    const int reason = errno;
    throw Error(ErrorKind::kUsage, reason == EADDRINUSE ? fmt::format("port {} is in use", port)
                                                        : fmt::format("port {} cannot be used: {}", port,
                                                                      std::strerror(reason)));
  }
  return {std::move(name), std::move(socket), port};
}

namespace {

/// Makes a bound socket listen without blocking; none with errno if that fails.
std::vector<Fd> listening(Fd socket) {
  std::vector<Fd> sockets;
  if (!socket || ::listen(socket.get(), SOMAXCONN) != 0) return sockets;
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  sockets.push_back(std::move(socket));
  return sockets;
}

/// A socket that is bound to `port` of one address. Without a socket, errno says why.
Fd bound_socket(Address address, int port) {
  const sa_family_t family = address.storage.ss_family;
  if (family != AF_INET && family != AF_INET6) return Fd();
  Fd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd) return fd;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  port_of(address) = htons(static_cast<std::uint16_t>(port));
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), address.size) != 0) return Fd();
  return fd;
}

}  // namespace

std::vector<Fd> listening_sockets(const std::string& host, int port, const Lookup& lookup) {
  std::vector<Fd> sockets;
  try {
    std::vector<Address> addresses;
    for (const Address& address : look_up_within(kLookupTime, lookup, host)) {
      // A name may have an address twice in /etc/hosts.
      if (std::any_of(addresses.begin(), addresses.end(), [&](const Address& other) {
            return std::memcmp(&other.storage, &address.storage, sizeof address.storage) == 0;
          }))
        continue;
      addresses.push_back(address);
      // A name may lead to the loopback here and to another address on other machines, as in Debian's
      // /etc/hosts.
      if (is_loopback(address) && !is_numeric(host))
        throw Error(ErrorKind::kUsage, "it is a loopback address");
      std::vector<Fd> made = listening(bound_socket(address, port));
      if (made.empty() && errno == EADDRINUSE) return {};
      if (made.empty()) throw Error(ErrorKind::kUsage, std::strerror(errno));
      sockets.push_back(std::move(made.front()));
    }
  } catch (const Error& error) {
    sockets.clear();
    log::debug(fmt::format("listening on all interfaces, not only on '{}': {}", host, error.message()));
  }
  return sockets.empty() ? listening(bound_socket(port)) : std::move(sockets);
}

}  // namespace accel::launch
