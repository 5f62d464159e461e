#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files/fd.hpp"

namespace accel {

/// Identifies a process to the other processes of its machine.
struct ProcessIdentity {
  int pid = 0;
  std::uint64_t pid_namespace = 0;
  std::string boot;  ///< The id of the boot, which differs between machines and between boots of one.

  /// Returns the identity of this process.
  static ProcessIdentity self();
  [[nodiscard]] std::string text() const;
  /// Parses the result of text(). Any other text is an Error of kind kFailure.
  static ProcessIdentity from(const std::string& text);
};

/// Notices at once when the process of another rank ends, whatever the cause.
class PeerWatch {
 public:
  PeerWatch() = default;
  /// `processes` are in rank order. The own rank's process is not watched. A process that is not in this
  /// process's PID namespace on this machine, or that has ended already, is an Error of kind kFailure that
  /// names the rank.
  PeerWatch(std::span<const ProcessIdentity> processes, int own_rank);

  /// Returns a rank whose process has ended, or nullopt.
  [[nodiscard]] std::optional<int> ended() const;
  [[nodiscard]] int pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<int> pids_;
  std::vector<Fd> fds_;  ///< A descriptor of each rank's process, but for the own rank.
};

}  // namespace accel
