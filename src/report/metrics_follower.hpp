#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "report/run_history.hpp"

namespace accel {

/// Reads the metrics of a run while it writes them.
class MetricsFollower {
 public:
  /// `directory` is the output_dir of a training, which need not have metrics yet.
  explicit MetricsFollower(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// Reads what is new in metrics.jsonl, and says whether there is a new record. A file that another one has
  /// replaced, as when a run goes on from a checkpoint, is read from its start. Throws what
  /// read_run_history() throws.
  bool read();
  [[nodiscard]] const RunHistory& history() const { return history_; }

 private:
  std::filesystem::path directory_;
  RunHistory history_;
  ino_t inode_ = 0;
  std::uint64_t read_bytes_ = 0;  ///< The bytes of whole lines that history_ has.
  std::int64_t lines_ = 0;
};

}  // namespace accel
