#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>

namespace accel::cli {

/// The losses that a run has reported, by step.
struct StepLosses {
  std::map<std::int64_t, double> training;  ///< The mean of the steps since the record before.
  std::map<std::int64_t, double> held_out;

  /// The training loss of the last record up to `step`, if there is one.
  [[nodiscard]] std::optional<double> training_at(std::int64_t step) const;
  /// The held-out loss of the weights of `step`, if the run has evaluated them.
  [[nodiscard]] std::optional<double> held_out_at(std::int64_t step) const;
};

/// Reads the `metrics.jsonl` of a run. Without the file there are no losses. A line that is not a record,
/// such as a last one that is not finished, is passed over, and so is a loss that is not finite. Of several
/// records of a step the last counts. Throws Error if the file cannot be read.
[[nodiscard]] StepLosses read_step_losses(const std::filesystem::path& metrics);

}  // namespace accel::cli
