#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "core/config/config.hpp"

namespace accel::train {

/// Records what a rank does in some of its steps with libtorch's profiler, and writes a trace that
/// chrome://tracing and ui.perfetto.dev open. The trace has the operators of forward and backward, the units
/// around them, and the collectives from their issue to their end, so that overlap can be seen.
///
/// Recording slows the steps down. Without a configuration nothing is recorded. A process has one profiler at
/// a time.
class StepProfiler {
 public:
  /// The trace is `directory`/rank_<rank>.json. The directory is created when the first recorded step begins.
  StepProfiler(const std::optional<config::ProfileConfig>& config, std::filesystem::path directory, int rank,
               at::Device device);
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;
  /// Drops what was recorded if the last recorded step did not end.
  ~StepProfiler();

  void begin_step(std::int64_t step);
  /// Writes the trace after the last step to be recorded, and returns its path then. A full disk is an Error
  /// of kind kFailure.
  std::optional<std::filesystem::path> end_step(std::int64_t step);

 private:
  void write(const std::filesystem::path& path);

  std::optional<config::ProfileConfig> config_;
  std::filesystem::path directory_;
  int rank_;
  at::Device device_;
  bool recording_ = false;
};

}  // namespace accel::train
