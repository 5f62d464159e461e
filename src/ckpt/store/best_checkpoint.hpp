#pragma once

#include <cstdint>
#include <filesystem>
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
      : key_("eval_" + name),
        set_(name.substr(0, name.find_last_of('_') == std::string::npos ? 0 : name.find_last_of('_'))),
        greater_(name == "accuracy" || name.ends_with("_accuracy")) {}

  /// Its name in metrics.jsonl and in RunState::evaluation: "eval_loss".
  [[nodiscard]] const std::string& key() const { return key_; }
  /// The name of its set of held-out data; empty for training.data.eval.
  [[nodiscard]] const std::string& set() const { return set_; }
  /// False for NaN.
  [[nodiscard]] bool is_better(double value, double than) const {
    return greater_ ? value > than : value < than;
  }
  /// A value than which every finite one is better.
  [[nodiscard]] double worst() const;

 private:
  std::string key_;
  std::string set_;
  bool greater_;
};

/// The key in RunState::settings of the fingerprint of a set of held-out data, whose name is that of
/// config::HeldOutData.
[[nodiscard]] std::string held_out_setting(const std::string& set);
/// Its value: the fingerprint, and the tokens of a sample if the configuration sets them.
[[nodiscard]] std::string held_out_value(std::uint32_t fingerprint, std::int64_t length);
/// Whether two such values are of the same data. Earlier versions wrote the fingerprint alone.
[[nodiscard]] bool are_same_held_out(const std::string& one, const std::string& other);

/// The one of `steps`, which ascend, with the best value, of equals the last. Nothing if none has a value.
[[nodiscard]] std::optional<std::int64_t> best_step(const std::vector<std::int64_t>& steps,
                                                    const std::map<std::int64_t, double>& values,
                                                    const BestMetric& metric);

/// The finite values of `key` in the `metrics.jsonl` of a run, by step. There are none without the file. A
/// line that is not a record, such as a last one that is not finished, is passed over. Of several records of
/// a step the last counts. Throws Error if the file cannot be read.
[[nodiscard]] std::map<std::int64_t, double> reported_values(const std::filesystem::path& metrics,
                                                             const std::string& key);

/// The values of `metric` of the checkpoints of `steps`, which are whole. The state of a checkpoint has its
/// value, which is as durable as the checkpoint. Only a checkpoint whose state has none, as that of an
/// earlier accel, has the one that `metrics`, the `metrics.jsonl` of the run, reports for its step. Throws
/// Error if a state or that file cannot be read.
[[nodiscard]] std::map<std::int64_t, double> checkpoint_values(const RunCheckpoints& checkpoints,
                                                               const std::vector<std::int64_t>& steps,
                                                               const BestMetric& metric,
                                                               const std::filesystem::path& metrics);

/// The best of the checkpoints of `steps`, which are whole and ascend, by checkpoint_values(). A checkpoint
/// without a value does not count. Values on other data than those of the newest checkpoint that names its
/// held-out data do not count either; a checkpoint of an earlier accel, which names none, does. Retention and
/// the commands that name a best checkpoint all use this rule.
[[nodiscard]] std::optional<std::int64_t> best_checkpoint(const RunCheckpoints& checkpoints,
                                                          const std::vector<std::int64_t>& steps,
                                                          const BestMetric& metric,
                                                          const std::filesystem::path& metrics);
/// The same for all whole checkpoints of the run.
[[nodiscard]] std::optional<std::int64_t> best_checkpoint(const RunCheckpoints& checkpoints,
                                                          const BestMetric& metric,
                                                          const std::filesystem::path& metrics);

}  // namespace accel::ckpt
