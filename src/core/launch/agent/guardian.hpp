#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "core/launch/output/pipe.hpp"

namespace accel::launch {

/// A process that survives a kill -9 of the launcher and ends what the launcher has started.
///
/// When the launcher dies, the kernel kills the workers (PR_SET_PDEATHSIG), but not the processes that they
/// have forked. So the guardian reads from a pipe. If the pipe closes without a message, it kills the process
/// group of every worker and every process whose environment has a TORCHELASTIC_ERROR_FILE in `scratch`, and
/// removes that folder. Without one, this run's TORCHELASTIC_RUN_ID is the mark.
class Guardian {
 public:
  /// Forks. Call it from the main thread before any worker is started.
  Guardian(const std::string& run_id, const std::filesystem::path& scratch);
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;
  /// Tells the guardian that the run has ended, and waits until it exits.
  ~Guardian();

  /// Workers write their process groups to this descriptor; see SpawnRequest::announce_fd.
  [[nodiscard]] int announce_fd() const { return pipe_.get(); }
  /// Removes a group that has ended from those to kill: another process may get its number.
  void unwatch(pid_t group);
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  Fd pipe_;
  pid_t pid_ = -1;
};

/// Closes every descriptor of this process except `kept`, also where /proc/self/fd cannot be read.
void close_all_but(int kept);

}  // namespace accel::launch
