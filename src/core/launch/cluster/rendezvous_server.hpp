#pragma once

#include <string>

#include "base/error.hpp"
#include "core/launch/cluster/rendezvous.hpp"

namespace accel::launch {

/// Waits as machine 0 for the launchers of all other machines. Each brings its version and its settings. If
/// settings or ranks of a launcher differ, an Error (kUsage) names the difference, here and on every machine
/// that has arrived. A connection that is not of a launcher of this run and of this version is turned away
/// alone. Who has not arrived is shown after a while. After the time limit the run begins with those that
/// are there, if they are enough (RendezvousParameters::min_machines), else that is an Error (kFailure).
[[nodiscard]] Members await_members(const RendezvousParameters& parameters);

/// The same when a run begins again: `there` are still connected, and the others may come back. If `there`
/// are enough, it waits for the others for RendezvousParameters::last_call_s and
/// HeartbeatTimes::loss_margin(). What differs only turns that machine away.
[[nodiscard]] Members await_members_again(const RendezvousParameters& parameters, Members there);

/// Tells the members that the run does not begin, and why: they throw an Error of this kind.
void refuse(Members& members, ErrorKind kind, const std::string& why);

/// The ranks of the machine itself and of its members.
[[nodiscard]] int ranks_of(const RendezvousParameters& parameters, const Members& members);

/// Sends each member its part: `common`, with machines and ranks in the order of the members behind
/// machine 0.
void send_welcome(Members& members, const RendezvousParameters& parameters, const Welcome& common);

/// Tells the members for what they wait, which their logs show; an empty text means that this machine is at
/// work. Each such message begins their time limits anew.
void send_waiting(Members& members, const std::string& text);

/// Tells the members that a failed run does not begin again; `why` may be empty.
void send_end(Members& members, const std::string& why);

}  // namespace accel::launch
