#pragma once

#include <cstdint>

#include "ckpt/store/run_state.hpp"

namespace accel {

/// Throws Error (kUsage) unless training.data.train, which has so many samples, can be the data of the run
/// that was at `place`. The sequence length is 0 for samples that are no runs of tokens.
void require_same_data(const ckpt::DataPlace& place, std::int64_t samples, std::int64_t sequence_length);

}  // namespace accel
