#include "core/launch/cluster/rendezvous_parameters.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "core/config/keys/common_settings.hpp"

namespace accel::launch {
namespace {

/// FNV-1a. The machines compare the arguments of a program without telling them, since they may be secret.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const unsigned char c : text) hash = (hash ^ c) * 1099511628211U;
  return hash;
}

}  // namespace

RendezvousParameters rendezvous_parameters(const config::Config& config,
                                           const std::vector<std::string>& program,
                                           const std::string& version, const std::string& host) {
  const config::LaunchConfig& launch = config.launch;
  RendezvousParameters parameters{launch.machine_rank,
                                  launch.num_machines,
                                  launch.num_processes,
                                  launch.local_processes,
                                  host,
                                  launch.main_process_ip,
                                  launch.main_process_port,
                                  version,
                                  config::common_settings(config),
                                  launch.rendezvous_timeout_s,
                                  launch.min_machines,
                                  launch.last_call_timeout_s};
  parameters.heartbeats.timeout = std::chrono::milliseconds(std::llround(launch.heartbeat_timeout_s * 1000));
  // It may have to watch the locks of two directories.
  parameters.answer_s += 2 * launch.lock_timeout_s;
  parameters.run_id = launch.run_id;
  if (program.empty()) return parameters;
  parameters.settings["the program"] =
      fmt::format("{} with {} argument{}", program[0], program.size() - 1, program.size() == 2 ? "" : "s");
  for (std::size_t i = 1; i < program.size(); ++i) parameters.argument_hashes.push_back(hash_of(program[i]));
  return parameters;
}

}  // namespace accel::launch
