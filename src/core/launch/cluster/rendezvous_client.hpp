#pragma once

#include <string>
#include <variant>

#include "core/launch/cluster/rendezvous.hpp"

namespace accel::launch {

/// Connects to machine 0, waits until all machines are there, and returns what it sends. Throws Error:
/// kFailure with the reason if it is not reached within the time limit, kUsage if it refuses this machine or
/// is not machine 0 of this run.
[[nodiscard]] Membership join(const RendezvousParameters& parameters);

/// Waits after a failure for what machine 0 decides: a place in the next attempt, or why there is none.
/// Throws like join().
[[nodiscard]] std::variant<Membership, std::string> rejoin(Connection connection,
                                                           const RendezvousParameters& parameters);

}  // namespace accel::launch
