#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace accel::ckpt {

/// What sort of defect a Finding is. The names (name_of) are part of the command's output.
enum class FindingKind {
  kMissingFile,  ///< Referred to, but not there.
  kTruncated,    ///< A file ends before what lies in it.
  kBroken,       ///< Bytes that contradict their own format.
  kChecksum,     ///< Bytes that are not those that were written.
  kMismatch,     ///< Two parts that are sound by themselves contradict each other.
  kOverlap,      ///< Bytes of a file, or elements of a tensor, that two pieces claim.
  kHole,         ///< Elements of a tensor that no piece has.
  kStale,        ///< Something is there that nothing refers to.
  kTimes,        ///< Files of one save whose times say that they are of several.
};

/// "missing-file", "checksum", ...
[[nodiscard]] std::string_view name_of(FindingKind kind);

/// One defect of a checkpoint.
struct Finding {
  FindingKind kind = FindingKind::kBroken;
  std::string file;         ///< Relative to the checkpoint; empty if it is of no single file.
  std::string tensor;       ///< Or object; empty if it is of no single one.
  std::uint64_t begin = 0;  ///< Bytes [begin, end) of the file; both 0: no range.
  std::uint64_t end = 0;
  std::string text;  ///< What was found, what was expected.

  friend auto operator<=>(const Finding&, const Finding&) = default;
};

/// By file, place, tensor, kind and text; the same finding twice becomes one.
void sort_findings(std::vector<Finding>& findings);

/// "checksum: __0_0.distcp, bytes 64 to 128, 'model.w': record 'data/0' has ...".
[[nodiscard]] std::string to_string(const Finding& finding);

/// What an Error about findings is: kMissing if all of them say that something is not there, else kCorrupt.
[[nodiscard]] ErrorKind error_kind_of(const std::vector<Finding>& findings);

}  // namespace accel::ckpt
