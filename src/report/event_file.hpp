#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "report/metric_sink.hpp"

namespace accel {

/// Writes an event file of TensorBoard into a directory. Each number of a record becomes a scalar with the
/// step and the time of the record, under the tag that scalar_tag() says.
///
/// open() begins a new file, which comes behind those that are there when they are sorted by name, as
/// TensorBoard reads them. The file begins with a START of a session: TensorBoard then drops what earlier
/// files say of later steps. The files are those of `tensorboard.compat.proto.event_pb2.Event`, as records of
/// TFRecord (docs/formats.md), and flushed record by record.
class EventFile final : public MetricSink {
 public:
  explicit EventFile(std::filesystem::path directory) : directory_(std::move(directory)) {}
  void open(std::int64_t step) override;
  void write(const Metrics& metrics) override;

 private:
  void append(std::string_view event);

  std::filesystem::path directory_;
  std::filesystem::path path_;
  std::ofstream out_;
};

/// The tag of the number `name` in a record: "train/loss", "eval/perplexity" for "eval_perplexity",
/// "checkpoint/stall_s". It is empty for what is not shown as a curve: texts, the step, the time, the
/// attempt, and where the time of a run went.
[[nodiscard]] std::string scalar_tag(const Metrics& metrics, std::string_view name);

}  // namespace accel
