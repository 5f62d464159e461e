#pragma once

#include "ckpt/dcp/chunks.hpp"

namespace accel::ckpt {

/// Whether accel can undo what was done to the range's bytes: nothing, or compression with zstd.
[[nodiscard]] bool has_known_transform(const DcpRange& range);

/// Whether the range holds a zstd stream; torch has no other transform of its own. Throws Error (kFailure)
/// for a transform that accel does not know.
[[nodiscard]] bool is_zstd(const DcpRange& range);

}  // namespace accel::ckpt
