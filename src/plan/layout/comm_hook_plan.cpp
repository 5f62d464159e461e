#include "plan/layout/comm_hook_plan.hpp"

#include "base/checked.hpp"
#include "plan/layout/low_rank_plan.hpp"

namespace accel {
namespace {

using config::CommHookType;

constexpr std::int64_t kHalfBytes = 2;
constexpr std::int64_t kFloatBytes = 4;

}  // namespace

CommHookPlan plan_comm_hook(const FlatLayout& layout, const config::DdpConfig& config) {
  CommHookPlan plan;
  const bool is_wrapped = config.comm_wrapper != CommHookType::kNo;
  const std::uint64_t half_bytes = checked_nbytes(layout.numel(), kHalfBytes);
  if (is_wrapped) plan.copied_bytes = half_bytes;
  if (config.comm_hook != CommHookType::kPowerSgd) {
    plan.sent_bytes = half_bytes;
    // A gradient that the wrapper has cast to the hook's dtype is not copied again.
    if (config.comm_wrapper != config.comm_hook)
      plan.copied_bytes = checked_add(plan.copied_bytes, half_bytes);
    return plan;
  }
  const LowRankPlan low_rank = plan_low_rank(layout, config.power_sgd);
  const std::int64_t item_bytes = is_wrapped ? kHalfBytes : kFloatBytes;
  const std::uint64_t first =
      checked_nbytes(checked_add(low_rank.uncompressed_numel, low_rank.p_numel), item_bytes);
  const std::uint64_t qs = checked_nbytes(low_rank.q_numel, item_bytes);
  plan.sent_bytes = checked_add(first, qs);
  plan.copied_bytes = checked_add(plan.copied_bytes, first);
  (config.power_sgd.warm_start ? plan.state_bytes : plan.copied_bytes) += qs;
  if (config.power_sgd.use_error_feedback)
    plan.state_bytes = checked_add(plan.state_bytes, checked_nbytes(layout.numel(), item_bytes));
  return plan;
}

}  // namespace accel
