#pragma once

#include <cstdint>
#include <vector>

#include "core/config/config.hpp"
#include "plan/layout/flat_layout.hpp"

namespace accel {

/// A parameter's gradient as a matrix M [rows, columns] that is sent as P [rows, rank] and Q [columns, rank],
/// with M approximately P Q^T.
struct LowRankMatrix {
  std::int64_t offset = 0;   ///< Index of its first element in the flat gradient.
  std::int64_t rows = 0;     ///< The parameter's first dimension.
  std::int64_t columns = 0;  ///< The product of all other dimensions.
  std::int64_t rank = 0;
  std::int64_t p_offset = 0;  ///< Index in a flat buffer of all P.
  std::int64_t q_offset = 0;  ///< Index in a flat buffer of all Q.
};

/// How PowerSGD sends a flat gradient.
struct LowRankPlan {
  /// Matrices of one shape follow each other, otherwise they have the order of the layout. Their first Q are
  /// drawn in this order, which is torch's for a bucket with the parameters in the order of the layout.
  std::vector<LowRankMatrix> matrices;
  std::vector<ElementRange> uncompressed;  ///< Ranges of the parameters that are sent uncompressed.
  std::int64_t p_numel = 0;
  std::int64_t q_numel = 0;
  std::int64_t uncompressed_numel = 0;
};

/// Source: torch, powerSGD_hook. Scalars and empty parameters, on which powerSGD_hook fails, are sent
/// uncompressed.
LowRankPlan plan_low_rank(const FlatLayout& layout, const config::PowerSgdConfig& config);

}  // namespace accel
