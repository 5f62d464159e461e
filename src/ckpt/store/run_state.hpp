#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace accel::ckpt {

/// The file of a checkpoint that holds the state of the run beside tensors.
inline constexpr const char* kRunStateName = "trainer_state.json";

/// The file of a checkpoint that holds ModelNotes::weight_conversions, if the model file has any.
inline constexpr const char* kWeightConversionsName = "weight_conversions.json";

/// The key in RunState::settings of how the ranks divided the model, such as "2 replicas x 4 shards".
inline constexpr const char* kLayoutSetting = "layout of the ranks";
/// What stands in a kLayoutSetting with tensor parallelism, and in no other.
inline constexpr const char* kTensorParts = "parts (tp)";

/// The key in RunState::settings of the samples that all ranks together take in a micro-batch.
inline constexpr const char* kMicroBatchSetting = "samples of a micro-batch over all ranks";

/// The place of a run in its training data, and what the data was.
struct DataPlace {
  std::int64_t epoch = 0;         ///< The number of the epoch, counted from 0.
  std::int64_t samples_done = 0;  ///< Samples of that epoch that all ranks together have trained on.
  std::int64_t samples = 0;       ///< The samples of an epoch.
  std::int64_t sequence_length = 0;
  bool shuffle = true;
};

/// The state of PowerSGD that is not a tensor.
struct PowerSgdState {
  std::int64_t draws = 0;                ///< The numbers that were drawn for seeds.
  std::vector<std::int64_t> iterations;  ///< The iterations of each flat buffer.
};

/// What the schedule greedy counts beside PlateauState, with transformers' names.
struct GreedyState {
  std::int64_t num_good_epochs = 0;
  std::int64_t warmup_counter = 0;
  std::int64_t reset_start = 0;
};

/// The state of a learning rate that follows the held-out loss, with torch's names.
struct PlateauState {
  double scale = 1;            ///< The factor on the learning rates.
  std::optional<double> best;  ///< Empty before the first finite loss.
  std::int64_t num_bad_epochs = 0;
  std::int64_t cooldown_counter = 0;
  std::optional<GreedyState> greedy;  ///< Only the schedule greedy has one.
};

/// The state of early stopping.
struct EarlyStoppingState {
  std::string metric;                 ///< The name of the number in an evaluation, such as "eval_loss".
  std::optional<double> best;         ///< Empty before the first finite value.
  std::int64_t patience_counter = 0;  ///< The last evaluations that were not better.
};

/// The sum of the finite values of steps.
struct SumOfSteps {
  double sum = 0;
  std::int64_t steps = 0;  ///< Their number.
};

/// What `trainer_state.json` of a checkpoint says. Every rank has the same values.
struct RunState {
  std::int64_t step = 0;             ///< The steps of the run that are done.
  std::int64_t optimizer_steps = 0;  ///< The steps that changed the weights; the schedule follows them.
  /// The steps of the parameter that has the most: another one may have had no gradient in some. Earlier
  /// versions did not write it.
  std::optional<std::int64_t> parameter_steps;
  /// The parameters that have had no gradient and whose first step is another one than the rest, as with the
  /// dampening of SGD, whose state says no number of steps.
  std::vector<std::string> without_gradient;
  double epoch = 0;  ///< The epochs that are done, with a fraction.
  double lr = 0;     ///< The learning rate of the last step.
  std::uint64_t seed = 0;
  int world_size = 0;
  std::int64_t skipped_in_a_row = 0;   ///< The last steps that were skipped because of infinities or NaN.
  std::int64_t skipped_since_log = 0;  ///< The steps that were skipped since the last line of metrics.
  /// The sum of the finite losses since the last line of metrics, and their number. Earlier versions did not
  /// write them.
  double loss_sum_since_log = 0;
  std::int64_t steps_since_log = 0;
  /// The same of the model's metrics, by name.
  std::map<std::string, SumOfSteps> metrics_since_log;
  /// The samples that all ranks together have trained on since the beginning. Earlier versions did not write
  /// it.
  std::optional<std::int64_t> samples_trained;
  DataPlace data;
  /// The settings that the numbers of the run depend on, by key, for a comparison with those of a later run.
  std::map<std::string, std::string> settings;
  /// Set if the checkpoint has no frozen parameters (training.checkpoint.adapter_only): a hash of them.
  std::optional<std::string> frozen_hash;
  std::optional<PowerSgdState> power_sgd;  ///< Only the hook power_sgd has one.
  std::optional<PlateauState> plateau;     ///< Only a schedule that follows the held-out loss has one.
  std::optional<EarlyStoppingState> early_stopping;  ///< Empty before the first evaluation, too.
  /// The finite numbers of the evaluation of this step, such as "eval_loss". Empty if it had none.
  std::map<std::string, double> evaluation;
  /// The evaluation of this step is left to the run that goes on, since a signal asked this one to end.
  bool evaluation_is_due = false;
};

/// The text of the file, with a newline at its end.
[[nodiscard]] std::string encode_run_state(const RunState& state);

/// Throws Error: kCorrupt if the file is not what encode_run_state wrote or contradicts itself, kUsage if an
/// earlier accel wrote it.
[[nodiscard]] RunState read_run_state(const std::filesystem::path& file);

}  // namespace accel::ckpt
