#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "core/config/config.hpp"

namespace accel::train {

/// Records what a rank does in some of its steps with libtorch's profiler, and writes it as a trace that
/// chrome://tracing and ui.perfetto.dev open: the operators of forward and backward, the units around them,
/// and the collectives with the time from their issue to their end, so that what overlaps can be seen.
///
/// Recording slows the steps down; without a configuration it does nothing. One of them at a time in a
/// process.
class StepProfiler {
 public:
  /// `directory` gets `rank_<rank>.json`; it is made when the first recorded step begins.
  StepProfiler(const std::optional<core::ProfileConfig>& config, std::filesystem::path directory, int rank,
               at::Device device);
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;
  /// What was recorded of steps that did not end is dropped.
  ~StepProfiler();

  void begin_step(std::int64_t step);
  /// Writes the trace after the last step to be recorded, and returns its path then. A disk that is full is
  /// an Error (kFailure).
  std::optional<std::filesystem::path> end_step(std::int64_t step);

 private:
  void write(const std::filesystem::path& path);

  std::optional<core::ProfileConfig> config_;
  std::filesystem::path directory_;
  int rank_;
  at::Device device_;
  bool recording_ = false;
};

}  // namespace accel::train
