#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/store/run_checkpoints.hpp"

namespace accel::ckpt {

/// The number of an evaluation by which a run's checkpoints are compared (training.best_metric).
class BestMetric {
 public:
  /// `name` is "loss" or "accuracy", or one of these behind the name of a set and "_". An accuracy is better
  /// if it is greater, and a loss if it is less.
  explicit BestMetric(const std::string& name)
      : key_("eval_" + name), greater_(name == "accuracy" || name.ends_with("_accuracy")) {}

  /// Its name in metrics.jsonl and in RunState::evaluation: "eval_loss".
  [[nodiscard]] const std::string& key() const { return key_; }
  /// False for NaN.
  [[nodiscard]] bool is_better(double value, double than) const {
    return greater_ ? value > than : value < than;
  }
  /// A value than which every finite one is better.
  [[nodiscard]] double worst() const;

 private:
  std::string key_;
  bool greater_;
};

/// The one of `steps`, which ascend, with the best value, of equals the last. Nothing if none has a value.
[[nodiscard]] std::optional<std::int64_t> best_step(const std::vector<std::int64_t>& steps,
                                                    const std::map<std::int64_t, double>& values,
                                                    const BestMetric& metric);

/// The step of the best whole checkpoint, by the evaluation that each of them has in its state. A checkpoint
/// without an evaluation of its step does not count. Throws Error if one cannot be looked at.
[[nodiscard]] std::optional<std::int64_t> best_checkpoint(const RunCheckpoints& checkpoints,
                                                          const BestMetric& metric);

}  // namespace accel::ckpt
