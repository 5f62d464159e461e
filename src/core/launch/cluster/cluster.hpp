#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/launch/agent/attempt_end.hpp"
#include "core/launch/agent/peers.hpp"
#include "core/launch/cluster/heartbeats.hpp"
#include "core/launch/cluster/rendezvous.hpp"

namespace accel::launch {

/// The launchers of a run on several machines while it lasts. Machine 0 has a connection to each other one,
/// and passes failures and signals on. Each side sends heartbeats until release(). A machine whose connection
/// ends, or that sends nothing for the time-out, is lost, and the run ends.
class Cluster : public Peers {
 public:
  /// How the attempt ended on all machines. There is none before is_over() is true, as when the user has
  /// ended the wait for it.
  [[nodiscard]] virtual const std::optional<AttemptEnd>& end() const = 0;
  /// Tells the other machines that this one cannot begin, and why. The run ends.
  virtual void abandon(const std::string& why) = 0;
  /// Tells the other machines that this one was asked to end, so that nobody waits for it.
  virtual void leave() = 0;
  /// The open connections to other machines, by machine, once the run has ended: machine 0 has all of them,
  /// and others that to machine 0. This object is of no use afterwards.
  [[nodiscard]] virtual Members release() = 0;
  /// The numeric address by which another machine reaches this one; empty if this machine is the only one
  /// left.
  [[nodiscard]] virtual std::string own_address() const = 0;
};

[[nodiscard]] std::unique_ptr<Cluster> lead(Members members, std::string host, HeartbeatTimes heartbeats);
[[nodiscard]] std::unique_ptr<Cluster> follow(Connection connection, std::string host, std::string leader,
                                              HeartbeatTimes heartbeats);

}  // namespace accel::launch
