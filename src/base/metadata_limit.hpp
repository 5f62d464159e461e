#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace accel {

/// The environment variable that sets metadata_limit(), a size such as 4GB.
inline constexpr const char* kMetadataLimitVariable = "ACCEL_MAX_METADATA";

/// Bytes that the description of one file (a `.metadata`, a pickle, a header, an index, the directory of an
/// archive) may have, unpacked; and bytes of memory that the values built from it may take. It is 1 GB unless
/// the environment says otherwise: a small file can ask for many gigabytes. The `.metadata` of a million
/// tensors has 0.3 GB, and its values take 0.8. Throws Error (kUsage) if the variable is not a size.
[[nodiscard]] std::uint64_t metadata_limit();

/// The Error (kCorrupt) for `what`, such as "the header", that needs `bytes`: it names the limit and how to
/// raise it.
[[nodiscard]] Error beyond_metadata_limit(std::string_view what, std::uint64_t bytes);

/// Throws that Error if `bytes` are more than the limit.
void check_metadata_bytes(std::string_view what, std::uint64_t bytes);

}  // namespace accel
