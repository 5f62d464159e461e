#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/tensor/dtype.hpp"
#include "data/arrow/flat_table.hpp"

namespace accel {

/// How a column has lists in its rows, or in the lists of the level above.
struct ArrowList {
  std::size_t offset_bytes = 0;  ///< 4 or 8, the size of the offsets that say where lists begin; 0 for lists
                                 ///< that all have `items` items.
  std::int64_t items = 0;
};

/// A column of an Arrow schema. A column that can be read consists of numbers, or of lists of them, whose
/// items may be lists again.
struct ArrowColumn {
  std::string name;
  /// Why the column cannot be read, as what follows "the column", such as "has texts". Empty if it can.
  std::string obstacle;
  ckpt::DType dtype = ckpt::DType::kUnknown;
  std::vector<ArrowList> lists;  ///< From the outermost to the innermost.
  std::size_t nodes = 0;         ///< How many entries it has in the list of nodes of each record batch.
  std::size_t buffers = 0;       ///< How many it has in the list of buffers, beside those of `views`.
  std::size_t views = 0;         ///< How many of its parts have a number of buffers that each batch says.
};

/// The columns of a schema (Apache Arrow, format/Schema.fbs). Throws Error (kUsage) if it is damaged, of
/// big-endian numbers, without columns, or has two columns of one name or a type that is not known.
[[nodiscard]] std::vector<ArrowColumn> arrow_columns(const FlatTable& schema);

}  // namespace accel
