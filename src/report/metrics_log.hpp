#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <utility>

namespace accel {

/// Writes `metrics.jsonl`: one JSON object per line, flushed line by line. A run that goes on appends to the
/// file (cut_metrics).
class MetricsLog {
 public:
  /// Nothing is written if `path` is empty, as it is on every rank but rank 0.
  explicit MetricsLog(std::filesystem::path path) : path_(std::move(path)) {}
  /// Opens the file for appending, without the lines of steps after `step` (cut_metrics). Call it before
  /// write(), and when nothing can keep the run from going on any more.
  void open(std::int64_t step);
  void write(const nlohmann::ordered_json& line);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

/// Removes the lines of `metrics.jsonl` that are of a step after `step`, and a last line that was not
/// finished, so that a run that goes on from `step` writes none twice. The file is replaced atomically; a
/// link to it stays a link. A file that does not exist stays so.
void cut_metrics(const std::filesystem::path& path, std::int64_t step);

}  // namespace accel
