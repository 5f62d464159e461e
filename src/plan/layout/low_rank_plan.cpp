#include "plan/layout/low_rank_plan.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace accel {
namespace {

/// The matrix has rank 0 if the factors would not save enough bytes.
LowRankMatrix matrix_of(const FlatParameter& parameter, const config::PowerSgdConfig& config) {
  LowRankMatrix matrix{parameter.offset};
  if (parameter.spec.shape.empty() || parameter.numel == 0) return matrix;
  matrix.rows = parameter.spec.shape.front();
  matrix.columns = parameter.numel / matrix.rows;
  const std::int64_t rank = std::min({matrix.rows, matrix.columns, config.matrix_approximation_rank});
  const std::int64_t factors = checked_mul(matrix.rows + matrix.columns, rank);
  const bool saves =
      static_cast<double>(factors) * config.min_compression_rate < static_cast<double>(parameter.numel);
  matrix.rank = saves ? rank : 0;
  return matrix;
}

}  // namespace

LowRankPlan plan_low_rank(const FlatLayout& layout, const config::PowerSgdConfig& config) {
  LowRankPlan plan;
  for (const FlatParameter& parameter : layout.parameters) {
    const LowRankMatrix matrix = matrix_of(parameter, config);
    if (matrix.rank == 0) {
      plan.uncompressed.push_back({parameter.offset, parameter.offset + parameter.numel});
      plan.uncompressed_numel += parameter.numel;
      continue;
    }
    const auto is_alike = [&](const LowRankMatrix& other) {
      return other.rows == matrix.rows && other.columns == matrix.columns;
    };
    const auto last = std::find_if(plan.matrices.rbegin(), plan.matrices.rend(), is_alike);
    plan.matrices.insert(last == plan.matrices.rend() ? plan.matrices.end() : last.base(), matrix);
  }
  for (LowRankMatrix& matrix : plan.matrices) {
    matrix.p_offset = plan.p_numel;
    matrix.q_offset = plan.q_numel;
    plan.p_numel = checked_add(plan.p_numel, matrix.rows * matrix.rank);
    plan.q_numel = checked_add(plan.q_numel, matrix.columns * matrix.rank);
  }
  return plan;
}

}  // namespace accel
