#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/io/byte_source.hpp"
#include "ckpt/tensor/box.hpp"

namespace accel::ckpt {

/// A loop over elements, or over inner loops, with its step on both sides, in bytes.
struct CopyLoop {
  std::int64_t count = 0;
  std::int64_t source_step = 0;
  std::int64_t target_step = 0;
};

/// Elements to be copied between two strided layouts: `loops` from the outermost to the innermost, each
/// iteration moving `run_bytes` that are contiguous on both sides.
struct StridedCopy {
  std::uint64_t source = 0;  ///< Byte offset of the first element.
  std::uint64_t target = 0;
  std::uint64_t run_bytes = 0;
  std::vector<CopyLoop> loops;

  /// Bytes copied.
  [[nodiscard]] std::uint64_t bytes() const;
  /// From the first byte read to the last, gaps included.
  [[nodiscard]] std::uint64_t source_span() const;
};

/// The copy of a block of `sizes` elements with these strides (in elements) on each side, with dimensions
/// that are contiguous on both sides merged. All strides must be non-negative, all sizes positive.
[[nodiscard]] StridedCopy plan_strided_copy(const Dims& sizes, const Dims& source_strides,
                                            const Dims& target_strides, std::uint64_t source,
                                            std::uint64_t target, std::uint64_t item_bytes);

/// Reads from `source` into `out`, in which `copy.target` is an offset. Small or scattered runs are read
/// together, through `scratch`, and sorted out in memory; `scratch` must hold at least one run of up to
/// kDirectRunBytes.
void execute_strided_copy(const StridedCopy& copy, ByteSource& source, std::span<std::byte> out,
                          std::span<std::byte> scratch);

/// Runs of this many bytes are read straight to where they go.
inline constexpr std::uint64_t kDirectRunBytes = std::uint64_t{128} << 10;

}  // namespace accel::ckpt
