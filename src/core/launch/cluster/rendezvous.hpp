#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/launch/cluster/connection.hpp"
#include "core/launch/cluster/heartbeats.hpp"

namespace accel::launch {

/// What a launcher brings to the rendezvous of a run on several machines. Machine 0 is the server; the other
/// launchers connect to it and become members.
struct RendezvousParameters {
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
  HeartbeatTimes heartbeats = {};               ///< What launch.heartbeat_timeout sets.
  double answer_s = 60;                         ///< How long machine 0 may take to find where to begin.
  /// The ranks of machines that have been there, at machine 0. A machine that comes back has as many.
  std::map<int, int> ranks_of_machines = {};
  double first_report_s = 10;  ///< When to log for the first time who is missing.
  /// Hashes of the program's arguments, which must be the same on all machines. They are empty for a
  /// training.
  std::vector<std::uint64_t> argument_hashes = {};
  std::string run_id = {};  ///< launch.run_id, which tells apart the launchers of different runs.
  /// What the launchers of the run prove to each other that they know. Without one nobody is authenticated.
  std::string secret = {};
  /// Where a member finds the secret if it has none yet, because machine 0 may not have written it.
  std::filesystem::path secret_file = {};
};

/// A machine that has arrived at machine 0.
struct Member {
  Connection connection;
  std::string host;
  std::string address;
  int local_processes = 1;
  double after_s = 0;  ///< When it arrived, after machine 0 began to wait.
};

/// The members by the rank of their machine.
using Members = std::map<int, Member>;

/// What machine 0 sends to a member at the beginning.
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

/// A place in a run of several machines.
struct Membership {
  Connection connection;
  Welcome welcome;
};

}  // namespace accel::launch
