#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ranks/peers.hpp"
#include "ranks/shared_segment.hpp"

namespace accel::train {

/// What the rendezvous gives a rank: the shared memory, and a watch on the other ranks' processes.
struct ShmRendezvous {
  SharedSegment segment;
  PeerWatch peers;
};

/// Rendezvous of the ranks of one machine through `store`. They share `bytes` of memory and watch each
/// other's processes afterwards. If one rank fails, every rank throws the same Error of kind kFailure, so
/// that all can use another backend. Collective.
ShmRendezvous rendezvous_on_this_machine(c10d::Store& store, int rank, int size, std::size_t bytes);

}  // namespace accel::train
