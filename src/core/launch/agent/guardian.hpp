#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "core/launch/agent/pipe.hpp"

namespace accel::core {

/// A process that outlives a kill -9 of the launcher by a moment, to end what the launcher started.
///
/// The kernel kills the workers themselves when the launcher dies (PR_SET_PDEATHSIG), but not the processes
/// that they have forked. So the guardian waits at the end of a pipe: if the pipe closes without a word, it
/// kills the process group of every worker, then every process that carries this run's TORCHELASTIC_RUN_ID,
/// and removes `scratch`.
class Guardian {
 public:
  /// Forks; call from the main thread before any worker is started.
  Guardian(const std::string& run_id, const std::filesystem::path& scratch);
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;
  /// Says that all is well, and waits for the guardian to leave.
  ~Guardian();

  /// Workers announce their process groups here; see SpawnRequest::announce_fd.
  [[nodiscard]] int announce_fd() const { return pipe_.get(); }
  /// A group that has ended must not be killed later, when its number may belong to someone else.
  void forget(pid_t group);
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  Fd pipe_;
  pid_t pid_ = -1;
};

}  // namespace accel::core
