#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_code.hpp"
#include "core/launch/agent/peers.hpp"
#include "core/launch/agent/supervisor.hpp"
#include "core/launch/cluster/rendezvous.hpp"

namespace accel::launch {

/// How a machine's part of a run ended.
struct MachineEnd {
  ExitCode code = ExitCode::kSuccess;
  std::string report;  ///< The report of the first failure there; empty if none came from there.
  /// When that failure happened, in nanoseconds after the run began.
  std::int64_t failed_at_ns = 0;
  int futile_restarts = 0;                  ///< What agent/report says of the failure.
  std::optional<Hang> hang = std::nullopt;  ///< If that failure is that the ranks made no progress.
  bool was_interrupted = false;  ///< Somebody asked this machine to end, so that no restart follows.
  bool found_corrupt = false;    ///< What agent/report says of the failure.
};

/// How a run on several machines ended, the same on each of them.
struct Verdict {
  ExitCode code = ExitCode::kSuccess;
  std::string report;  ///< Of the first failure on any machine; empty if there was none.
  int futile_restarts = 0;
  bool was_interrupted = false;  ///< On any machine.
  bool found_corrupt = false;    ///< A rank has found bytes that contradict their own format or sum.
};

/// The end of the run from those of its machines.
[[nodiscard]] Verdict verdict_of(const std::vector<MachineEnd>& ends);

/// How the part of this machine ended. `began_at_ns` is when the run began, in nanoseconds since 1970.
[[nodiscard]] MachineEnd end_of(const GroupOutcome& outcome, const std::string& host,
                                std::int64_t began_at_ns);

/// The launchers of a run on several machines while it lasts. Machine 0 has a connection to each other one,
/// and passes failures and signals on. Each side says every two seconds that it is there. A machine whose
/// connection ends, or that is silent for kSilence, is lost, and the run ends.
class Cluster : public Peers {
 public:
  /// The result. There is none before is_over() is true, as when the user has ended the wait for it.
  [[nodiscard]] virtual const std::optional<Verdict>& verdict() const = 0;
  /// Tells the other machines that this one cannot begin, and why. The run ends.
  virtual void abandon(const std::string& why) = 0;
  /// Tells the other machines that this one was asked to end, so that nobody waits for it.
  virtual void leave() = 0;
  /// The open connections to other machines, by machine, once the run has ended: machine 0 has all of them,
  /// and others that to machine 0. This object is of no use afterwards.
  [[nodiscard]] virtual Members release() = 0;
  /// The numeric address by which another machine reaches this one; empty if this machine is the only one
  /// left.
  [[nodiscard]] virtual std::string own_address() const = 0;
};

inline constexpr std::chrono::seconds kSilence{20};

[[nodiscard]] std::unique_ptr<Cluster> lead(Members members, std::string host);
[[nodiscard]] std::unique_ptr<Cluster> follow(Connection connection, std::string host, std::string leader);

}  // namespace accel::launch
