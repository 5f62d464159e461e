#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/store/run_state.hpp"
#include "core/config/config.hpp"
#include "data/batch_plan.hpp"
#include "data/read_ahead.hpp"
#include "train/c10d/mesh_groups.hpp"
#include "train/loop/samples.hpp"

namespace accel::train {

/// The labels that a model needs whose notes are `accel_json`. Only a model that computes its loss itself
/// shifts labels. Throws Error (kUsage) if the configured inputs are those of forward, as the notes name
/// them, in another order.
Labels labels_for(const config::ModelConfig& config, const std::string& accel_json);

/// Says which labels do not count, of a batch that has no other.
[[nodiscard]] std::string_view uncounted_labels(const config::ModelConfig& model);

/// The training batches of one data rank, epoch after epoch without end. A thread reads the next ones while
/// the last one is used. What this says of epochs and places is of those that next() has returned.
class TrainingBatches {
 public:
  /// Fewer samples than one step needs are an Error of kind kUsage.
  TrainingBatches(const config::DataConfig& config, const config::ModelConfig& model, std::uint64_t seed,
                  const DataParallel& ranks, at::Device device);

  /// Makes next() refuse tokens that the model does not know, as Samples::set_vocabularies() does.
  /// Must be called before next().
  void set_vocabularies(std::map<std::string, std::int64_t> tokens) {
    data_.set_vocabularies(std::move(tokens));
  }
  /// Tells the dtypes of a program's inputs, as Samples::set_input_dtypes() does. Must be called before
  /// next().
  void set_input_dtypes(InputDtypes dtypes) { data_.set_input_dtypes(std::move(dtypes)); }
  /// Must be called before next().
  void set_labels(Labels labels) { labels_ = labels; }
  /// Returns the next micro-batch. If cross_entropy compares with its labels and none of them counts, a
  /// warning says so, of the first one, the tenth, the hundredth and so on. Afterwards last_of_epoch() says
  /// whether an epoch ends with it.
  /// Labels that are all of classes of weight 0 count as little as -100: a mean by such weights is 0/0.
  Batch next();
  [[nodiscard]] bool last_of_epoch() const { return at_.is_end_of_epoch(); }
  /// The epoch of the last micro-batch plus the part of it that is done, as one number.
  [[nodiscard]] double epoch() const;
  /// The samples that so many ranks as now have trained on when they are at place().
  [[nodiscard]] std::int64_t samples_trained() const;
  /// Where the next micro-batch begins, for a checkpoint.
  [[nodiscard]] ckpt::DataPlace place() const;
  /// The place after so many steps of `micro_batches` each, counted from the beginning of the first epoch.
  /// The last step of an epoch may have fewer.
  [[nodiscard]] ckpt::DataPlace place_after(std::int64_t steps, std::int64_t micro_batches) const;
  /// Goes to a place that place() said in an earlier run, on any number of ranks. Data of another size is an
  /// Error of kind kUsage.
  void go_to(const ckpt::DataPlace& place);
  [[nodiscard]] const Samples& data() const { return data_; }
  /// A micro-batch once more, by Batch::numbers. The thread stops reading ahead, so next() must not follow.
  [[nodiscard]] Batch again(const std::vector<std::int64_t>& numbers) {
    reader_.reset();
    return data_.batch(numbers, labels_, device_);
  }
  /// Samples::nonfinite_input() of these samples.
  [[nodiscard]] std::optional<std::string> nonfinite_input(const std::vector<std::int64_t>& numbers) const {
    return data_.nonfinite_input(numbers, labels_);
  }

 private:
  struct Progress {
    BatchPlan plan;  ///< The plan of the epoch.
    std::int64_t epoch = 0;
    std::int64_t step = 0;  ///< Micro-batches that are done of the plan.

    [[nodiscard]] bool is_end_of_epoch() const { return step == plan.steps(); }
  };
  struct ReadBatch {
    std::vector<std::int64_t> samples;
    std::vector<at::Tensor> fields;
    Progress after;
  };

  /// Reads the micro-batch behind `at`.
  [[nodiscard]] ReadBatch read_behind(Progress at) const;
  void warn_of_uncounted(const std::vector<std::int64_t>& samples);
  [[nodiscard]] std::int64_t samples_per_step() const;

  config::DataConfig config_;
  config::ModelConfig model_;
  Samples data_;
  std::uint64_t seed_;
  int rank_;
  at::Device device_;
  Labels labels_ = Labels::kNextTokens;
  Progress at_;                                 ///< Behind the last micro-batch that next() has returned.
  std::int64_t uncounted_ = 0;                  ///< Micro-batches so far in which no label counted.
  std::optional<ReadAhead<ReadBatch>> reader_;  ///< The last member: its thread uses the others.
};

}  // namespace accel::train
