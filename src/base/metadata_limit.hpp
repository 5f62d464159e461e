#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace accel {

/// The environment variable that sets metadata_limit(), a size such as 4GB.
inline constexpr const char* kMetadataLimitVariable = "ACCEL_MAX_METADATA";

/// The most bytes that the metadata of one file (a `.metadata`, a pickle, a header, an index, the directory
/// of an archive) may have, unpacked, and the most bytes of memory that the values built from it may take. A
/// damaged file can ask for many gigabytes, so the limit is 1 GB unless the environment says otherwise. The
/// `.metadata` of a million tensors has 0.3 GB, and its values take 0.8. Throws Error (kUsage) if the
/// variable is not a size.
[[nodiscard]] std::uint64_t metadata_limit();

/// The Error (kCorrupt) for `what`, such as "the header", that needs `bytes`: it names the limit and how to
/// raise it.
[[nodiscard]] Error beyond_metadata_limit(std::string_view what, std::uint64_t bytes);

/// Whether `error` is that of beyond_metadata_limit(), which says nothing about a sound file.
[[nodiscard]] bool is_beyond_metadata_limit(const Error& error);

/// Throws beyond_metadata_limit() if `bytes` are more than the limit.
void check_metadata_bytes(std::string_view what, std::uint64_t bytes);

}  // namespace accel
