#pragma once

#include <cstddef>
#include <span>

#include "ckpt/pickle/graph.hpp"

namespace accel::ckpt::pickle {

/// Runs the opcodes of a pickle of protocol 2 to 5 on a stack of references, and gives the graph that they
/// build. Nothing is executed, nothing recurses, and memory is bounded by a multiple of the input, which must
/// outlive the graph. Throws Error (kCorrupt) for an unknown opcode, a stack that does not match, and input
/// that ends early or goes on after STOP.
[[nodiscard]] Graph run_machine(std::span<const std::byte> bytes);

}  // namespace accel::ckpt::pickle
