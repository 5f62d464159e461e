#include "core/launch/cluster/rendezvous_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/error.hpp"
#include "core/launch/agent/message_fields.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;

/// The largest machine and rank numbers, and attempts and restarts, that a configuration can ask for.
constexpr int kMostMachines = 65536;
constexpr int kMostAttempts = 1'000'000'000;

}  // namespace

json to_json(const Hello& hello) {
  return {{"version", hello.version},
          {"run_id", hello.run_id},
          {"host", hello.host},
          {"nonce", hello.nonce},
          {"proof", hello.proof}};
}

Hello hello_from_json(const json& hello) {
  constexpr std::size_t kMost = 1024;
  if (!hello.is_object()) throw Error(ErrorKind::kFailure, "the hello is not an object");
  return {text_in(hello, "version", kMost), text_in(hello, "run_id", kMost), text_in(hello, "host", kMost),
          text_in(hello, "nonce", kMost), text_in(hello, "proof", kMost)};
}

json join_to_json(const RendezvousParameters& parameters) {
  return {{"machine_rank", parameters.machine_rank},
          {"num_machines", parameters.num_machines},
          {"local_processes", parameters.local_processes},
          {"settings", parameters.settings},
          {"argument_hashes", parameters.argument_hashes}};
}

RendezvousParameters join_from_json(const json& join) {
  RendezvousParameters parameters;
  if (!join.is_object()) throw Error(ErrorKind::kFailure, "the join is not an object");
  parameters.machine_rank = int_in(join, "machine_rank", 0, kMostMachines);
  parameters.num_machines = int_in(join, "num_machines", 1, kMostMachines);
  parameters.local_processes = int_in(join, "local_processes", 1, kMostMachines);
  try {
    field(join, "settings").get_to(parameters.settings);
    field(join, "argument_hashes").get_to(parameters.argument_hashes);
  } catch (const json::exception&) {
    throw Error(ErrorKind::kFailure, "'settings' or 'argument_hashes' has another form");
  }
  return parameters;
}

json to_json(const Welcome& welcome) {
  return {{"machine_rank", welcome.machine_rank},   {"num_machines", welcome.num_machines},
          {"num_processes", welcome.num_processes}, {"first_rank", welcome.first_rank},
          {"master_port", welcome.master_port},     {"attempt", welcome.attempt},
          {"restarts", welcome.restarts},           {"run_id", welcome.run_id},
          {"resume_from", welcome.resume_from},     {"is_finished", welcome.is_finished}};
}

Welcome welcome_from_json(const json& welcome, const RendezvousParameters& parameters) {
  if (!welcome.is_object()) throw Error(ErrorKind::kFailure, "the welcome is not an object");
  constexpr std::size_t kMostText = 4096;
  constexpr int kMostPort = 65535;
  Welcome part;
  part.num_machines =
      int_in(welcome, "num_machines", std::max(2, parameters.min_machines), parameters.num_machines);
  const bool all = part.num_machines == parameters.num_machines;
  part.machine_rank =
      int_in(welcome, "machine_rank", all ? parameters.machine_rank : 1,
             all ? parameters.machine_rank : std::min(parameters.machine_rank, part.num_machines - 1));
  // Each other machine has a rank at least.
  part.num_processes =
      int_in(welcome, "num_processes",
             all ? parameters.num_processes : parameters.local_processes + part.num_machines - 1,
             parameters.num_processes);
  const int machines_behind = part.num_machines - 1 - part.machine_rank;
  part.first_rank = int_in(welcome, "first_rank", part.machine_rank,
                           part.num_processes - parameters.local_processes - machines_behind);
  part.master_port = int_in(welcome, "master_port", 1, kMostPort);
  part.attempt = int_in(welcome, "attempt", 0, kMostAttempts);
  part.restarts = int_in(welcome, "restarts", 0, kMostAttempts);
  part.run_id = text_in(welcome, "run_id", kMostText);
  part.resume_from = text_in(welcome, "resume_from", kMostText);
  part.is_finished = bool_in(welcome, "is_finished");
  return part;
}

}  // namespace accel::launch
