#pragma once

#include <cstdint>
#include <vector>

#include "core/config/config.hpp"
#include "plan/flat_layout.hpp"

namespace accel {

/// A parameter's gradient as a matrix M [rows, columns] that is sent as P [rows, rank] and Q [columns, rank],
/// with M about P Q^T.
struct LowRankMatrix {
  std::int64_t offset = 0;   ///< Of its first element in the flat gradient.
  std::int64_t rows = 0;     ///< The parameter's first dimension,
  std::int64_t columns = 0;  ///< and all others.
  std::int64_t rank = 0;
  std::int64_t p_offset = 0;  ///< In a flat buffer of all P,
  std::int64_t q_offset = 0;  ///< and of all Q.
};

/// What PowerSGD makes of a flat gradient.
struct LowRankPlan {
  /// Those of one shape one after another, else in the order of the layout: the order in which their first Q
  /// are drawn, torch's for a bucket that has the parameters in that order.
  std::vector<LowRankMatrix> matrices;
  std::vector<ElementRange> uncompressed;  ///< Of the parameters that are sent as they are.
  std::int64_t p_numel = 0;
  std::int64_t q_numel = 0;
  std::int64_t uncompressed_numel = 0;
};

/// Source: torch, powerSGD_hook. Scalars and empty parameters, on which that fails, are sent uncompressed.
LowRankPlan plan_low_rank(const FlatLayout& layout, const core::PowerSgdConfig& config);

}  // namespace accel
