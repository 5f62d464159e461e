#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

namespace accel {

/// What a run reports at one moment: named values in the order in which metrics.jsonl has them. One is
/// "step". The others are those of a training step ("loss"), an evaluation ("eval_loss", or
/// "eval_NAME_loss" and so on with the name as "eval_set"), a saved checkpoint ("checkpoint") or one that
/// could not be saved ("checkpoint_error"), where the time of a run went
/// ("run_time_s"), or that it has stopped early ("stopped_early", the evaluations without an improvement, and
/// "why").
using Metrics = nlohmann::ordered_json;

/// What stands before the names of an evaluation's numbers: "eval_", or "eval_NAME_" for a set of held-out
/// data with that name.
[[nodiscard]] std::string evaluation_prefix(const std::string& set);

/// A part of the time of a run: its name in a record, and what it is called in texts.
struct PartOfRun {
  const char* key;
  const char* name;
};

/// The parts of "run_time_s" that are measured, in the order of a run.
inline constexpr std::array<PartOfRun, 8> kPartsOfRun = {{{"start_s", "start"},
                                                          {"data_s", "waiting for data"},
                                                          {"forward_s", "forward"},
                                                          {"backward_s", "backward"},
                                                          {"reduce_s", "loss and gradient norm"},
                                                          {"optimizer_s", "optimizer"},
                                                          {"eval_s", "evaluation"},
                                                          {"save_s", "checkpoints"}}};

/// A place that a run reports to.
class MetricSink {
 public:
  virtual ~MetricSink() = default;
  /// Begins after `step`, without what an earlier run has reported of later steps. It is called once, before
  /// write(), when no error can end the run any more before its first step.
  virtual void open(std::int64_t step) = 0;
  virtual void write(const Metrics& metrics) = 0;
  /// Called once after the last record of a run that ends in order. May wait for so long.
  virtual void close(std::chrono::seconds /*patience*/) {}
};

/// Writes `metrics.jsonl`: one JSON object per line, flushed line by line. open() removes the lines of later
/// steps, and a last line that was not finished. It replaces the file atomically; a link to it stays a link.
class JsonLines final : public MetricSink {
 public:
  explicit JsonLines(std::filesystem::path path) : path_(std::move(path)) {}
  void open(std::int64_t step) override;
  void write(const Metrics& metrics) override;

 private:
  void cut(std::int64_t step) const;

  std::filesystem::path path_;
  std::ofstream out_;
};

/// Writes a line to the log, with the time that is left until step `max_steps` at the speed since open(). The
/// log of an earlier run stays as it is.
class LogLines final : public MetricSink {
 public:
  explicit LogLines(std::int64_t max_steps) : max_steps_(max_steps) {}
  void open(std::int64_t step) override;
  void write(const Metrics& metrics) override;

 private:
  void write_step(const Metrics& metrics) const;
  static void write_evaluation(const Metrics& metrics);
  static void write_times(const Metrics& metrics);

  std::int64_t max_steps_;
  std::int64_t done_before_ = 0;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace accel
