#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>

namespace accel {

/// Writes `metrics.jsonl`: one JSON object per line, flushed line by line.
class MetricsLog {
 public:
  /// Replaces the file. With an empty `path`, as on all ranks but rank 0, nothing is written.
  explicit MetricsLog(const std::filesystem::path& path);
  void write(const nlohmann::ordered_json& line);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

}  // namespace accel
