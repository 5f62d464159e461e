#pragma once

#include <cstdint>

#include "data/files/token_stream.hpp"
#include "data/formats/sample_source.hpp"
#include "data/formats/tensor_table.hpp"

namespace accel {

/// The CRC-32 of tokens at 64 places, evenly spaced from the first to the last, and of the last tokens of
/// each file. It tells data apart, but does not see every change.
[[nodiscard]] std::uint32_t fingerprint_of(const TokenStream& stream);
/// The CRC-32 of 64 samples, evenly spaced from the first to the last, and of the last sample of each file.
/// The first and the last bytes stand for a sample's tensor that is large.
[[nodiscard]] std::uint32_t fingerprint_of(const TensorTable& table);
/// The CRC-32 of all fields of 64 samples, evenly spread from the first to the last, with labels of the next
/// tokens. For sources whose samples are small.
[[nodiscard]] std::uint32_t fingerprint_of_samples(const SampleSource& source);

}  // namespace accel
