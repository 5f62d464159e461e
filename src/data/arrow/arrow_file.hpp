#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/arrow/arrow_schema.hpp"
#include "data/files/data_file.hpp"

namespace accel {

/// Where a record batch has a column that can be read.
struct ArrowChunk {
  bool has_nulls = false;
  std::vector<std::int64_t> counts;       ///< The rows, then the items at each level of lists.
  std::vector<std::uint64_t> offsets_at;  ///< Where in the file the offsets of each level of lists begin.
  std::uint64_t values_at = 0;            ///< Where in the file the numbers begin.
};

/// Rows of an Arrow file that were written together.
struct ArrowBatch {
  std::int64_t rows = 0;
  std::vector<ArrowChunk> chunks;  ///< One for each column. Those of columns with an obstacle are empty.
};

/// What is where in a file of Arrow's IPC format (docs/formats.md, "Datasets of Hugging Face"). Everything
/// that the chunks name lies within the file.
struct ArrowLayout {
  std::vector<ArrowColumn> columns;
  std::vector<ArrowBatch> batches;  ///< Those that have rows.
};

/// Reads the descriptions of all messages in a file of the stream or of the file format, and none of their
/// values. Throws Error (kUsage) if it does not have the format, is truncated, damaged or compressed.
[[nodiscard]] ArrowLayout read_arrow_layout(const DataFile& file);

/// Returns where lists number `begin` to `begin + count` of a level begin among the items below, `count` + 1
/// numbers that never fall and are from 0 to the number of items. Reads them, unless all lists are of one
/// size. Throws Error (kUsage) if they are damaged.
[[nodiscard]] std::vector<std::int64_t> read_arrow_offsets(const DataFile& file, const ArrowColumn& column,
                                                           const ArrowChunk& chunk, std::size_t level,
                                                           std::int64_t begin, std::int64_t count);

}  // namespace accel
