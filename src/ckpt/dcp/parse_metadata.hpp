#pragma once

#include <cstddef>
#include <span>

#include "ckpt/dcp/metadata.hpp"

namespace accel::ckpt {

/// Parses `.metadata` as written by torch 2.1 to 2.15 (5 or 6 tensor properties, 3 or 5 fields). Nothing in
/// it is executed. Checks that shapes and boxes are sound, that boxes lie within their tensor, and that every
/// chunk has its place in a file; overlap and holes are the reader's concern. Takes time and memory in
/// proportion to the chunks; from a megabyte on it uses a second thread. Throws Error (kCorrupt).
[[nodiscard]] DcpMetadata parse_dcp_metadata(std::span<const std::byte> bytes);

}  // namespace accel::ckpt
