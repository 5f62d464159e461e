#pragma once

#include <string_view>

namespace accel::machine {

/// Whether `word` is one of those that torch, NCCL, CUDA, OpenMP, MKL, Slurm, Accelerate and accel know as a
/// value, or as the name of an option within a value, in upper or lower case.
[[nodiscard]] bool is_value_word(std::string_view word);

}  // namespace accel::machine
