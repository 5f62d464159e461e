#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace accel::ckpt {

/// The sort of defect that a Finding is. The names (name_of) are part of the output of `accel verify`.
enum class FindingKind {
  kMissingFile,  ///< A file that is referred to is not there.
  kTruncated,    ///< A file ends before the end of what lies in it.
  kBroken,       ///< Bytes contradict their own format.
  kChecksum,     ///< Bytes are not the ones that were written.
  kMismatch,     ///< Two parts that are sound by themselves contradict each other.
  kOverlap,      ///< Two pieces claim the same bytes of a file, or elements of a tensor.
  kHole,         ///< Elements of a tensor are in no piece.
  kStale,        ///< A file or number that nothing refers to, or that no longer fits.
  kTimes,        ///< The times of a save's files say that they are of several saves.
};

/// The name of the kind, such as "missing-file" or "checksum".
[[nodiscard]] std::string_view name_of(FindingKind kind);

/// One defect of a checkpoint.
struct Finding {
  FindingKind kind = FindingKind::kBroken;
  std::string file;         ///< Its path in the checkpoint; empty if the defect is not in a single file.
  std::string tensor;       ///< The tensor or object; empty if the defect is not in a single one.
  std::uint64_t begin = 0;  ///< The first byte in the file; [0, 0) stands for no range.
  std::uint64_t end = 0;    ///< The byte behind the last byte.
  std::string text;         ///< What was found, and what was expected.

  friend auto operator<=>(const Finding&, const Finding&) = default;
};

/// Sorts by file, place, tensor, kind and text, and removes repetitions.
void sort_findings(std::vector<Finding>& findings);

/// Returns a text such as "checksum: __0_0.distcp, bytes 64 to 128, 'model.w': record 'data/0' has ...".
[[nodiscard]] std::string to_string(const Finding& finding);

/// Runs `action`. Returns its Error if that is of kind kCorrupt, which says of a reader what a finding says.
/// Any other Error is thrown.
[[nodiscard]] std::optional<Error> corruption_in(const std::invocable auto& action) {
  try {
    action();
    return std::nullopt;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kCorrupt) throw;
    return e;
  }
}

/// The kind of an Error about findings: kMissing if all of them say that something is not there, otherwise
/// kCorrupt.
[[nodiscard]] ErrorKind error_kind_of(const std::vector<Finding>& findings);

}  // namespace accel::ckpt
