#pragma once

#include <string>
#include <vector>

#include "base/files/fd.hpp"
#include "core/launch/world/address.hpp"

namespace accel::launch {

/// A TCP port of this machine that belongs to this launcher as long as the object lives (docs/design/029).
///
/// The port is bound on every address, and nobody listens on it. The kernel then gives it to nobody who asks
/// for any port, neither to a server nor to an outgoing connection. A program of this launcher that binds
/// this very port with SO_REUSEADDR, as the store of c10d does, may listen on it. Another launcher that asks
/// for this very port is refused by a second socket, whose name holds the port.
class PortHold {
 public:
  /// Holds a port that nobody uses.
  static PortHold any();
  /// Holds `port`, which is from 1 to 65535. If it is in use, another launcher holds it, or this user may not
  /// use it, the Error (kUsage) says so. Connections of an earlier server in TIME_WAIT do not count.
  static PortHold of(int port);

  [[nodiscard]] int port() const { return port_; }

 private:
  PortHold(Fd name, Fd socket, int port);

  Fd name_;
  Fd socket_;
  int port_;
};

/// Sockets that listen on `port` of the addresses of `host` and do not block; none if another one listens
/// there. If an address is not one of this machine, or a name leads to the loopback, the socket listens on
/// every address of this machine.
[[nodiscard]] std::vector<Fd> listening_sockets(const std::string& host, int port,
                                                const Lookup& lookup = look_up);

}  // namespace accel::launch
