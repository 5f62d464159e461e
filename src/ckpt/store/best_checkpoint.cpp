#include "ckpt/store/best_checkpoint.hpp"

#include <limits>

#include "ckpt/store/resume_point.hpp"
#include "ckpt/store/run_state.hpp"

namespace accel::ckpt {

double BestMetric::worst() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return greater_ ? -kInfinity : kInfinity;
}

std::optional<std::int64_t> best_step(const std::vector<std::int64_t>& steps,
                                      const std::map<std::int64_t, double>& values,
                                      const BestMetric& metric) {
  std::optional<std::int64_t> best;
  for (const std::int64_t step : steps) {
    const auto value = values.find(step);
    if (value != values.end() && (!best || !metric.is_better(values.at(*best), value->second))) best = step;
  }
  return best;
}

std::optional<std::int64_t> best_checkpoint(const RunCheckpoints& checkpoints, const BestMetric& metric) {
  const std::vector<std::int64_t> steps = checkpoints.steps();
  std::map<std::int64_t, double> values;
  for (const std::int64_t step : steps) {
    const std::filesystem::path path = checkpoints.path_of(step);
    if (!checkpoints.is_of_training(step) || why_not_whole(path, step)) continue;
    const RunState state = read_run_state(path / kRunStateName);
    if (const auto value = state.evaluation.find(metric.key()); value != state.evaluation.end())
      values[step] = value->second;
  }
  return best_step(steps, values, metric);
}

}  // namespace accel::ckpt
