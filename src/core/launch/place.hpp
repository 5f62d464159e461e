#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "ckpt/store/run_lock.hpp"
#include "core/launch/beginning.hpp"
#include "core/launch/cluster/cluster.hpp"
#include "core/launch/launch.hpp"
#include "core/launch/restart.hpp"
#include "core/launch/world/environment.hpp"
#include "core/launch/world/port.hpp"

namespace accel::launch {

/// Where this machine is in its run, and what the next attempt begins with.
struct Place {
  World world;
  int attempt = 0;
  bool is_finished = false;                 ///< There is nothing to do.
  std::unique_ptr<ckpt::RunLock> lock;      ///< The claim on the output_dir, which machine 0 has.
  std::unique_ptr<ckpt::RunLock> log_lock;  ///< That on launch.log_dir, which it has if that is set.
  std::int64_t first_step = 1;      ///< The first step of the attempt, if that is known on this machine.
  std::int64_t begins_after = 0;    ///< The step of the newest checkpoint when the attempt began.
  RendezvousParameters rendezvous;  ///< What this machine brings, if there are several.
  /// The port that the configuration asks for, which machine 0 holds until the run ends. On several machines
  /// their launchers meet there, and on one machine rank 0 has its store there.
  std::optional<PortHold> asked_port;
  std::optional<PortHold> free_port;  ///< The port of rank 0's store if that is not asked_port; on machine 0.
  std::unique_ptr<Cluster> cluster;   ///< Absent on one machine.
};

/// Throws if another run is known to have taken over a directory of this one. RunLock ends this run by
/// SIGTERM then, which is not to be reported as a request to end. It reads no file.
void require_locks_as_known(const Place& place);

/// Begins a run, on several machines together with their launchers. It sets the port of rank 0's store and
/// the checkpoint to go on from in the request's configuration.
[[nodiscard]] Place begin(LaunchRequest& request, const Environment& environment);

/// Whether check_damage() has something to read after this failure.
[[nodiscard]] bool may_be_damaged(const LaunchRequest& request, const Place& place,
                                  const AttemptEnd& failure);

/// Looks for damage of the checkpoint that the failed attempt began with. The members are told what they wait
/// for.
[[nodiscard]] Damage check_damage(const LaunchRequest& request, Members& members);

/// Begins again after a failed attempt, on all machines. Returns why not, which may be empty, if the run is
/// not to be begun again. Throws like begin().
[[nodiscard]] std::variant<Place, std::string> begin_again(LaunchRequest& request, Place place,
                                                           const AttemptEnd& failure, Restarts& restarts);

}  // namespace accel::launch
