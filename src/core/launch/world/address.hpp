#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/files/fd.hpp"

namespace accel::launch {

/// One address of a name.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

/// Every address of this machine in `family`, which is AF_INET or AF_INET6, with port 0.
[[nodiscard]] Address any_address(sa_family_t family);

/// The port of an address of IPv4 or IPv6, in network byte order.
[[nodiscard]] in_port_t& port_of(Address& address);

/// A socket that is connected to the address within three seconds, or an error number.
[[nodiscard]] std::pair<Fd, int> connect_to(const Address& address);

/// Whether the address leads to this machine alone, on every machine.
[[nodiscard]] bool is_loopback(const Address& address);

/// Whether `host` is a numeric address, not a name.
[[nodiscard]] bool is_numeric(const std::string& host);

/// The name of the network interface with this numeric address; empty if there is none.
[[nodiscard]] std::string interface_of(const std::string& address);

/// The addresses of a name or of a numeric address; an Error of kind kUsage says why there are none.
using Lookup = std::function<std::vector<Address>(const std::string& host)>;

/// getaddrinfo(3).
std::vector<Address> look_up(const std::string& host);

/// How long to wait for a name server.
inline constexpr std::chrono::seconds kLookupTime{10};

/// Calls `lookup(host)` on a thread of its own. An Error of kind kUsage says that the time is over; the
/// thread is detached then, because nothing ends getaddrinfo early.
std::vector<Address> look_up_within(std::chrono::milliseconds limit, const Lookup& lookup,
                                    const std::string& host);

/// Checks that ranks of this machine can reach a server of this machine at `host`: the name is resolved
/// within `limit`, and a connection to one of its addresses arrives here within three seconds. Otherwise an
/// Error of kind kUsage says which name failed and how.
void check_own_address(const std::string& host, std::chrono::milliseconds limit = kLookupTime,
                       const Lookup& lookup = look_up);

}  // namespace accel::launch
