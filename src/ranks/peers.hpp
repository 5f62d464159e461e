#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace accel {

/// A process, as others on its machine can know it.
struct ProcessIdentity {
  int pid = 0;
  std::uint64_t pid_namespace = 0;
  std::string boot;  ///< Differs between machines, and between boots of one.

  /// This process.
  static ProcessIdentity self();
  [[nodiscard]] std::string text() const;
  /// An Error of kind kFailure for what text() did not write.
  static ProcessIdentity from(const std::string& text);
};

/// Notices the end of the processes that the other ranks are, at once and whatever its cause.
class PeerWatch {
 public:
  PeerWatch() = default;
  /// `processes` by rank; this one's own rank is not watched. An Error of kind kFailure that names the rank
  /// if one is not in this process's PID namespace on this machine, or has ended already.
  PeerWatch(std::span<const ProcessIdentity> processes, int own_rank);

  /// A rank whose process has ended.
  [[nodiscard]] std::optional<int> ended() const;
  [[nodiscard]] int pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<int> pids_;
  std::vector<Fd> fds_;  ///< By rank; of the own rank none.
};

}  // namespace accel
