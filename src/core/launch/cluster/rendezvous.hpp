#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/error.hpp"
#include "core/launch/cluster/connection.hpp"

namespace accel::launch {

/// What a launcher brings to the rendezvous of a run on several machines.
struct Party {
  int machine_rank = 0;
  int num_machines = 1;
  int num_processes = 1;    ///< The ranks on all machines.
  int local_processes = 1;  ///< Those of this machine.
  std::string host;         ///< The name of this machine.
  std::string address;      ///< Where machine 0 listens.
  int port = 0;
  std::string version;                          ///< That of accel.
  std::map<std::string, std::string> settings;  ///< What must be the same on all machines, by name.
  double timeout_s = 300;                       ///< How long to wait for the others.
  int min_machines = 1;                         ///< The run goes on with at least so many of its machines.
  double last_call_s = 30;                      ///< How long a restart waits for more than min_machines.
  /// The ranks of machines that have been there, at machine 0. A machine that comes back has as many.
  std::map<int, int> ranks_of_machines = {};
  double first_word_s = 10;  ///< When to say for the first time who is missing.
  /// Hashes of the program's arguments, which must be the same on all machines. They are empty for a
  /// training.
  std::vector<std::uint64_t> argument_hashes = {};
};

/// A machine that has arrived at machine 0.
struct Guest {
  Connection connection;
  std::string host;
  std::string address;
  int local_processes = 1;
  double after_s = 0;  ///< When it arrived, after machine 0 began to wait.
};

/// Two machines see that the other one is lost at times that differ by no more than this.
inline constexpr std::chrono::seconds kLossMargin{4};

/// The guests by the rank of their machine.
using Guests = std::map<int, Guest>;

/// Waits as machine 0 for the launchers of all other machines. Each brings its version and its settings; what
/// differs is an Error (kUsage) that names it, here and on every machine that has arrived. Who has not
/// arrived is shown after a while. After the time limit the run begins with those that are there, if they are
/// enough (Party::min_machines), else that is an Error (kFailure).
[[nodiscard]] Guests await_guests(const Party& party);

/// The same when a run begins again: `there` are still connected, and the others may come back. If `there`
/// are enough, it waits for the others for Party::last_call_s and kLossMargin. What differs only turns that
/// machine away.
[[nodiscard]] Guests await_guests_again(const Party& party, Guests there);

/// Tells the guests that the run does not begin, and why: they throw an Error of this kind.
void refuse(Guests& guests, ErrorKind kind, const std::string& why);

/// What machine 0 tells another one at the beginning.
struct Welcome {
  int machine_rank = 0;   ///< The number of the machine among those that take part.
  int num_machines = 1;   ///< How many machines take part.
  int num_processes = 1;  ///< Their ranks.
  int first_rank = 0;     ///< The first of the machine's ranks.
  int master_port = 0;    ///< Where rank 0 hosts its store.
  int attempt = 0;        ///< The number of the attempt, for the names of logs.
  int restarts = 0;       ///< How often the run has begun again.
  std::string run_id;
  std::string resume_from;   ///< The checkpoint to go on from; empty for none.
  bool is_finished = false;  ///< There is nothing to do.
};

/// The ranks of the machine itself and of its guests.
[[nodiscard]] int ranks_of(const Party& party, const Guests& guests);

/// Tells each guest its part: `welcome`, with machines and ranks in the order of the guests behind machine 0.
void welcome(Guests& guests, const Party& party, const Welcome& common);

/// A place in a run of several machines.
struct Membership {
  Connection connection;
  Welcome welcome;
};

/// Goes to machine 0, waits until all machines are there, and returns what it says. Throws Error: kFailure
/// with the reason if it is not reached within the time limit, kUsage if it refuses this machine.
[[nodiscard]] Membership join(const Party& party);

/// Tells the guests for what they wait, which their logs say; an empty text tells that this machine is at
/// work. Each word begins their time limits anew.
void tell_waiting(Guests& guests, const std::string& text);

/// Tells the guests that a failed run does not begin again; `why` may be empty.
void tell_end(Guests& guests, const std::string& why);

/// Waits after a failure for what machine 0 decides: a place in the next attempt, or why there is none.
/// Throws like join().
[[nodiscard]] std::variant<Membership, std::string> rejoin(Connection connection, const Party& party);

}  // namespace accel::launch
