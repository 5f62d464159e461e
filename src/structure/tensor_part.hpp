#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace accel {

/// Which part of a parameter a rank has if tensor parallelism cuts it: a range of rows (dimension 0) or of
/// columns (dimension 1).
struct TensorPart {
  std::size_t dim = 0;
  std::int64_t begin = 0;  ///< The first row or column of the part.
  std::int64_t size = 0;   ///< The rows or columns of the part.
  std::int64_t whole = 0;  ///< Those of the whole parameter.
};

/// A run of elements that lie one behind the other both in a part and in the whole parameter, row-major.
struct PartRun {
  std::int64_t in_whole = 0;  ///< The index of its first element in the whole parameter.
  std::int64_t in_part = 0;   ///< The index of its first element in the part.
  std::int64_t count = 0;
};

/// The shape of the part of a parameter whose whole shape is `shape`.
[[nodiscard]] std::vector<std::int64_t> shape_of_part(std::vector<std::int64_t> shape,
                                                      const TensorPart& part);

/// The elements [begin, end) of the part of a parameter as runs, in their order. `shape` is that of the whole
/// parameter. A cut of rows gives one run.
[[nodiscard]] std::vector<PartRun> runs_of_part(const std::vector<std::int64_t>& shape,
                                                const TensorPart& part, std::int64_t begin, std::int64_t end);

/// The index in the part of the element `in_whole` of the whole parameter, whose shape is `shape`; nothing if
/// it is in another part.
[[nodiscard]] std::optional<std::int64_t> index_in_part(const std::vector<std::int64_t>& shape,
                                                        const TensorPart& part, std::int64_t in_whole);

}  // namespace accel
