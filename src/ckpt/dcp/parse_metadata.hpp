#pragma once

#include <cstddef>
#include <span>

#include "ckpt/dcp/metadata.hpp"

namespace accel::ckpt {

/// Parses `.metadata` as torch 2.1 to 2.15 write it (5 or 6 tensor properties, 3 or 5 fields). Nothing in it
/// is executed. Checks that shapes and boxes are valid, that boxes lie within their tensor, and that every
/// chunk has a place in a file. It does not check for overlaps and holes. Time and memory grow with the
/// number of chunks. A second thread reads part of an input of a megabyte or more. Throws Error (kCorrupt).
[[nodiscard]] DcpMetadata parse_dcp_metadata(std::span<const std::byte> bytes);

}  // namespace accel::ckpt
