#pragma once

#include <cstddef>
#include <span>

#include "ckpt/pickle/graph.hpp"

namespace accel::ckpt::pickle {

/// Runs the opcodes of a pickle of protocol 2 to 5 on a stack of references and returns the graph that they
/// build. Nothing is imported or called, nothing recurses, and memory is bounded by a multiple of the size of
/// the input. The input must outlive the graph. Throws Error (kCorrupt) for an unknown opcode, a stack that
/// does not match, and input that ends early or goes on after STOP.
[[nodiscard]] Graph run_machine(std::span<const std::byte> bytes);

}  // namespace accel::ckpt::pickle
