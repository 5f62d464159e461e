#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace accel::train {

/// The peak resident memory of this process, in bytes.
std::uint64_t max_rss_bytes();

/// The most bytes that tensors have had at once on `device` so far (torch.cuda.max_memory_allocated), or none
/// on the CPU.
std::optional<std::uint64_t> max_memory_allocated_bytes(c10::Device device);

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

}  // namespace accel::train
