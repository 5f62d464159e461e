#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/io/byte_source.hpp"
#include "ckpt/tensor/box.hpp"

namespace accel::ckpt {

/// A loop over runs or over inner loops. The steps on both sides are in bytes.
struct CopyLoop {
  std::int64_t count = 0;
  std::int64_t source_step = 0;
  std::int64_t target_step = 0;
};

/// A copy of elements between two strided layouts. `loops` stand from the outermost to the innermost, which
/// copies `run_bytes` in each iteration; these are contiguous on both sides.
struct StridedCopy {
  std::uint64_t source = 0;  ///< Byte offset of the first element.
  std::uint64_t target = 0;
  std::uint64_t run_bytes = 0;
  std::vector<CopyLoop> loops;

  /// Bytes copied.
  [[nodiscard]] std::uint64_t bytes() const;
  /// Bytes of the source from the first to the last that is read, gaps included.
  [[nodiscard]] std::uint64_t source_span() const;
};

/// Plans the copy of a block of `sizes` elements with these strides, in elements, on each side. Dimensions
/// that are contiguous on both sides are merged. No stride may be negative, and all sizes must be positive.
[[nodiscard]] StridedCopy plan_strided_copy(const Dims& sizes, const Dims& source_strides,
                                            const Dims& target_strides, std::uint64_t source,
                                            std::uint64_t target, std::uint64_t item_bytes);

/// Reads from `source` into `out`; `copy.target` is an offset in `out`. Small or scattered runs are read
/// together into `scratch` and copied from there. `scratch` must hold at least one run of up to
/// kDirectRunBytes.
void execute_strided_copy(const StridedCopy& copy, ByteSource& source, std::span<std::byte> out,
                          std::span<std::byte> scratch);

/// Runs of at least this many bytes are read straight into `out`.
inline constexpr std::uint64_t kDirectRunBytes = std::uint64_t{128} << 10;

}  // namespace accel::ckpt
