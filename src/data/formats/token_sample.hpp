#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "data/formats/sample_source.hpp"

namespace accel {

/// Writes a sample that is a run of `tokens`, of which there is one more than the sample has: the fields
/// input_ids and labels, in this order and as int64, into `out`. An empty span in `out` stands for a field
/// that is not wanted.
inline void write_token_sample(std::span<const std::int64_t> tokens, Labels labels,
                               std::span<const std::span<std::byte>> out) {
  const auto copy = [&](std::size_t first, std::span<std::byte> to) {
    if (!to.empty()) std::memcpy(to.data(), tokens.data() + first, to.size());
  };
  copy(0, out[0]);
  copy(labels == Labels::kInputs ? 0 : 1, out[1]);
}

}  // namespace accel
