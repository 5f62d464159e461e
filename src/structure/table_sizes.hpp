#pragma once

#include <cstdint>
#include <optional>

#include "structure/structure.hpp"

namespace accel {

/// The rows of a model's embedding tables, as far as their names say which is which.
struct TableSizes {
  std::optional<std::int64_t> tokens;     ///< The size of the vocabulary.
  std::optional<std::int64_t> positions;  ///< The most tokens of a sequence; absent without such a table.
  /// The rows of the smallest table that is not of positions and has 128 or more, as one of bytes has: the
  /// vocabulary is not smaller.
  std::optional<std::int64_t> least_tokens;
};

/// Reads the sizes off the weights of modules whose class ends in "Embedding". A table is of positions if the
/// last part of its module's name is one that models give such a table, such as "wpe" or
/// "position_embeddings". One of relative positions or with "pos" in another name is neither. The first other
/// one is the table of tokens.
[[nodiscard]] TableSizes table_sizes(const ModelStructure& model);

}  // namespace accel
