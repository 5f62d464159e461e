#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/fd.hpp"
#include "report/metric_sink.hpp"

namespace accel {

/// Gives each record to a command, as a line of JSON on its standard input, such as a bridge to a service
/// that draws curves (examples/metrics_to_*.py). The command is searched along PATH and gets two variables
/// more: ACCEL_OUTPUT_DIR, the absolute path of the run's directory, and ACCEL_FIRST_STEP, the first step
/// that it will hear of, since a run that goes on repeats the steps behind its checkpoint. It inherits the
/// standard output and error, and no other descriptor.
///
/// A command never holds up the training: what it does not read is kept, up to 16 MB, and then dropped with
/// one warning, as is all of a command that has ended.
class CommandSink final : public MetricSink {
 public:
  CommandSink(std::vector<std::string> command, std::filesystem::path output_dir)
      : command_(std::move(command)), output_dir_(std::move(output_dir)) {}
  CommandSink(const CommandSink&) = delete;
  CommandSink& operator=(const CommandSink&) = delete;
  ~CommandSink() override;

  /// Throws Error if the command cannot be started.
  void open(std::int64_t step) override;
  void write(const Metrics& metrics) override;
  /// Ends the input of the command, and waits for its end. Another exit code than 0 is a warning, and so is a
  /// command that has not ended by then, which is killed.
  void close(std::chrono::seconds patience) override;

 private:
  /// Writes what can be written without waiting.
  void push();
  void give_up(std::string_view why);

  std::vector<std::string> command_;
  std::filesystem::path output_dir_;
  Fd input_;  ///< A socket, since a write to it without a reader need not raise SIGPIPE.
  pid_t pid_ = -1;
  std::string pending_;
};

}  // namespace accel
