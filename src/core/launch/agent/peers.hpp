#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <vector>

namespace accel::launch {

struct GroupOutcome;

/// What the other machines of a run want of the workers of this one.
struct PeerRequest {
  bool looks = false;     ///< The run hangs: look where the ranks of this machine stand, and end them.
  bool ends_now = false;  ///< Something failed there: the workers must end, and not save before.
  int signal = 0;         ///< SIGINT, SIGTERM or SIGHUP, which a launcher got there.
};

/// The other machines of a run, as the supervisor of this one sees them.
class Peers {
 public:
  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  virtual ~Peers() = default;

  /// Adds what serve() waits for.
  virtual void add_polls(std::vector<pollfd>& polls) const = 0;
  /// When serve() is to be called at the latest.
  [[nodiscard]] virtual std::chrono::steady_clock::time_point deadline() const = 0;
  /// Reads and writes what is ready.
  virtual PeerRequest serve() = 0;

  /// Tells the others for how long the ranks of this machine have written nothing. `silence` is absent if
  /// none of them runs.
  virtual void report_silence(std::optional<std::chrono::milliseconds> silence) = 0;
  /// Whether this machine decides that a program hangs, of which only the output shows progress.
  [[nodiscard]] virtual bool decides() const = 0;
  /// Returns for how long the ranks of all other machines have written nothing; nothing if none of them runs.
  /// Only the machine that decides() knows it.
  [[nodiscard]] virtual std::optional<std::chrono::milliseconds> silence_elsewhere() const = 0;

  /// The workers of this machine make no progress.
  virtual void on_hang() = 0;
  /// A worker of this machine has failed.
  virtual void on_failure() = 0;
  /// The launcher of this machine got SIGINT, SIGTERM or SIGHUP.
  virtual void on_signal(int signal) = 0;
  /// All workers of this machine have ended. Call serve() until is_over().
  virtual void on_end(const GroupOutcome& outcome) = 0;
  [[nodiscard]] virtual bool is_over() const = 0;
};

}  // namespace accel::launch
