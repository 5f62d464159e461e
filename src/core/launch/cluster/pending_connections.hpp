#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <list>
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

/// The pending connections of a listening server, which are few, short-lived and small whatever others do.
///
/// There are at most kMost of them. Another one takes the place of the oldest, if that is a second old: a
/// launcher needs a few round trips. Until then it waits in the queue of the kernel, so that many launchers
/// that come at once do not drive each other out. If the process has no descriptor left, the oldest
/// connection is closed, and nothing is accepted for a moment.
class PendingConnections {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMost = 16;
  /// How long a connection may be pending.
  static constexpr std::chrono::seconds kMostTime{10};
  /// The age from which a connection gives its place to another one.
  static constexpr std::chrono::seconds kSafeAge{1};
  /// The size of a message before the hello is accepted.
  static constexpr std::size_t kMostBytes = 64 << 10;

  /// Takes sockets that listen and do not block. `on_accept` is called with each new connection, `on_drop`
  /// with one that is closed for its time or its place, and with the reason.
  PendingConnections(std::vector<Fd> listeners, std::function<void(PendingConnection&)> on_accept,
                     std::function<void(const PendingConnection&, const std::string& why)> on_drop,
                     std::chrono::milliseconds most_time = kMostTime,
                     std::chrono::milliseconds safe_age = kSafeAge);

  /// Adds what to wait for: connections and, unless there is no room, new ones.
  void add_polls(std::vector<pollfd>& polls) const;
  /// Accepts connections, calls `serve` with each open one, and forgets those that are closed or too old.
  void serve(const std::function<void(PendingConnection&)>& serve);

 private:
  [[nodiscard]] bool has_room() const;
  void accept_from(const Fd& listener);
  void drop_oldest(const std::string& why);

  std::vector<Fd> listeners_;
  std::function<void(PendingConnection&)> on_accept_;
  std::function<void(const PendingConnection&, const std::string&)> on_drop_;
  std::list<PendingConnection> connections_;  ///< The oldest first.
  std::chrono::milliseconds most_time_;
  std::chrono::milliseconds safe_age_;
  Clock::time_point accepts_after_ = Clock::now();
};

}  // namespace accel::launch
