#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "base/files/fd.hpp"
#include "core/launch/cluster/authentication.hpp"
#include "core/launch/cluster/connection.hpp"

namespace accel::launch {

/// A connection that has been accepted and is not yet that of a member. Anybody may have made it.
struct PendingConnection {
  Connection connection;
  std::string address;
  Handshake handshake = {};
  std::string host = {};     ///< The name of the machine there, once its hello is accepted.
  bool is_accepted = false;  ///< Its hello is accepted, and its join is awaited.
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

/// The pending connections of a listening server. Their number, time and size are limited whatever others do.
///
/// If there are as many as may be, another one takes the place of the oldest, once that has had its safe age:
/// a launcher needs a few round trips. Until then it waits in the queue of the kernel, so that many launchers
/// that come at once do not drive each other out. If the process has no descriptor left, the oldest
/// connection is closed, and nothing is accepted for a moment.
class PendingConnections {
 public:
  using Clock = std::chrono::steady_clock;
  /// The size of a message before the hello is accepted.
  static constexpr std::size_t kMostBytes = 16 << 10;

  struct Limits {
    std::size_t most = 512;                       ///< How many there may be.
    std::chrono::milliseconds most_time{10'000};  ///< How long a connection may be pending.
    /// The age from which a connection gives its place to another one.
    std::chrono::milliseconds safe_age{1000};
  };

  /// Takes sockets that listen and do not block. `on_accept` is called with each new connection, `on_drop`
  /// with one that is closed for its time or its place, and with the reason.
  PendingConnections(std::vector<Fd> listeners, std::function<void(PendingConnection&)> on_accept,
                     std::function<void(const PendingConnection&, const std::string& why)> on_drop,
                     Limits limits);

  void set_most(std::size_t most) { limits_.most = most; }

  /// Adds what to wait for: connections and, unless there is no room, new ones.
  void add_polls(std::vector<pollfd>& polls) const;
  /// Takes what add_polls() has added, after poll(2). Calls `serve` with each connection that is ready or
  /// new, and forgets those that are closed or too old. `serve` must leave no message unread.
  void serve(std::span<const pollfd> polls, const std::function<void(PendingConnection&)>& serve);

 private:
  [[nodiscard]] bool has_room() const;
  void accept_from(const Fd& listener, const std::function<void(PendingConnection&)>& serve);
  void drop_oldest(const std::string& why);

  std::vector<Fd> listeners_;
  std::function<void(PendingConnection&)> on_accept_;
  std::function<void(const PendingConnection&, const std::string&)> on_drop_;
  std::list<PendingConnection> connections_;  ///< The oldest first.
  Limits limits_;
  Clock::time_point accepts_after_ = Clock::now();
};

}  // namespace accel::launch
