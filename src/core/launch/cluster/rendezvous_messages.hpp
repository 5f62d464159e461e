#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/launch/cluster/rendezvous.hpp"

namespace accel::launch {

// The messages of the rendezvous. Each is a JSON object with one of these members:
//
//     server   {"challenge": NONCE, "version": V}          the first message on a connection
//     member   {"hello": {version, run_id, host, nonce, proof}}
//     server   {"accepted": PROOF}
//     member   {"join": {machine_rank, num_machines, local_processes, settings, argument_hashes}}
//     server   {"waiting": TEXT}, any number of times
//     server   {"welcome": {...}} | {"refused": TEXT, "for_failure": BOOL} | {"over": TEXT}
//
// "challenge", "version" and "refused" stay as they are in all versions of accel, so that two versions can
// tell each other that they differ.
//
// The functions that read throw Error (kFailure) for what the others do not write.

/// What a launcher says of itself before it is accepted.
struct Hello {
  std::string version;
  std::string run_id;
  std::string host;
  std::string nonce;
  std::string proof;  ///< That the member knows the secret (authentication.hpp); empty without one.
};

[[nodiscard]] nlohmann::json to_json(const Hello& hello);
[[nodiscard]] Hello hello_from_json(const nlohmann::json& hello);

/// The part of the parameters that a member tells machine 0.
[[nodiscard]] nlohmann::json join_to_json(const RendezvousParameters& parameters);
[[nodiscard]] RendezvousParameters join_from_json(const nlohmann::json& join);

[[nodiscard]] nlohmann::json to_json(const Welcome& welcome);
/// Checks every number against what the receiver knows of the run: `parameters` are its own.
[[nodiscard]] Welcome welcome_from_json(const nlohmann::json& welcome,
                                        const RendezvousParameters& parameters);

}  // namespace accel::launch
