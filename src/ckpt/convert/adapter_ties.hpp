#pragma once

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// Throws Error (kFailure) if the config.json beside `base` ties the head to the embedding, the base has both
/// of them, and `merged`, the tensors of the base with those of an adapter, changes one. PEFT changes the
/// tensor that both share in the memory of a process. In files one of them would keep its old values, or
/// transformers would drop the change when it ties them again. Both are told by their shape: matrices of
/// `vocab_size` rows outside the numbered layers.
void check_adapter_ties(const Checkpoint& base, const OutputState& merged);

}  // namespace accel::ckpt
