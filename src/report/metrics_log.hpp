#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>

namespace accel {

/// `metrics.jsonl`: one JSON object a line, flushed line by line. Only rank 0 writes; elsewhere it does
/// nothing.
class MetricsLog {
 public:
  /// Starts the file anew; `path` empty: writes nothing.
  explicit MetricsLog(const std::filesystem::path& path);
  void write(const nlohmann::ordered_json& line);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

}  // namespace accel
