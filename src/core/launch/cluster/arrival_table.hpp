#pragma once

#include <string>

#include "core/launch/cluster/rendezvous.hpp"

namespace accel::launch {

/// Returns a table of the machines that are there, a line each. If there are many machines, neighbours with
/// as many ranks share a line, and so do neighbours that have not arrived. The text stays short, since it is
/// sent to all members.
[[nodiscard]] std::string arrival_table(const RendezvousParameters& own, const Members& members);

}  // namespace accel::launch
