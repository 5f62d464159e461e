#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ranks/peers.hpp"
#include "ranks/shared_segment.hpp"

namespace accel::train {

/// What a rank needs to pass data to the others of its machine.
struct ShmRendezvous {
  SharedSegment segment;
  PeerWatch peers;
};

/// Meets the other ranks through `store`, shares `bytes` of memory with them and watches their processes.
/// Collective. If one rank cannot, every rank throws the same Error of kind kFailure, so that all may take
/// another way.
ShmRendezvous rendezvous_on_this_machine(c10d::Store& store, int rank, int size, std::size_t bytes);

}  // namespace accel::train
