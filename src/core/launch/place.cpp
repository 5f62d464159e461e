#include "core/launch/place.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/host/host_name.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "core/config/mesh.hpp"
#include "core/launch/beginning.hpp"
#include "core/launch/cluster/rendezvous_client.hpp"
#include "core/launch/cluster/rendezvous_parameters.hpp"
#include "core/launch/cluster/rendezvous_server.hpp"
#include "core/launch/cluster/run_secret.hpp"
#include "core/launch/run_directory.hpp"
#include "core/launch/world/address.hpp"

namespace accel::launch {
namespace {

std::string new_run_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return fmt::format("accel-{:08x}-{:016x}", ::getpid(), now);
}

/// Holds the port that the configuration asks for, if it asks for one.
void hold_asked_port(const LaunchRequest& request, Place& place) {
  const config::LaunchConfig& launch = request.loaded.config.launch;
  if (launch.main_process_port == 0) return;
  try {
    config::blamed_on("main_process_port", request.loaded.settings,
                      [&] { place.asked_port = PortHold::of(launch.main_process_port); });
  } catch (Error& error) {
    throw std::move(error).hint(launch.num_machines == 1
                                    ? "leave main_process_port out, and the run gets a free port"
                                    : "choose another main_process_port, the same on all machines");
  }
}

/// Decides on which port rank 0 has its store in the next attempt: main_process_port on one machine, else
/// launch.store_port, else a free one. A free port is another one for each attempt: a rank of an earlier
/// attempt, on a machine that was cut off, may still look for its store.
void choose_port(LaunchRequest& request, Place& place) {
  const int store_port = request.loaded.config.launch.store_port;
  if (place.asked_port && place.rendezvous.num_machines == 1) {
    place.world.master_port = place.asked_port->port();
  } else if (store_port != 0) {
    if (!place.free_port)
      config::blamed_on("launch.store_port", request.loaded.settings,
                        [&] { place.free_port = PortHold::of(store_port); });
    place.world.master_port = store_port;
  } else {
    place.world.master_port = place.free_port.emplace(PortHold::any()).port();
    log::debug(fmt::format("using port {}", place.world.master_port));
  }
  request.loaded.config.launch.main_process_port = place.world.master_port;
}

/// Rank 0 hosts its store on this machine, and all ranks connect to it by this name. A single rank connects
/// to nobody, and a network namespace may have no loopback.
void check_main_process_ip(const config::LoadedConfig& loaded) {
  const bool is_set = loaded.settings.has("main_process_ip");
  if (!is_set && loaded.config.launch.num_processes == 1) return;
  try {
    blamed_on("main_process_ip", loaded.settings,
              [&] { check_own_address(loaded.config.launch.main_process_ip); });
  } catch (Error& error) {
    if (!is_set) throw;
    throw std::move(error).hint("on one machine leave it out: 127.0.0.1 is the default");
  }
}

/// The number of this attempt: a training that goes on keeps the logs of earlier ones.
int next_attempt(const LaunchRequest& request) {
  const std::filesystem::path logs = log_root(request.loaded.config);
  int attempt = 0;
  if (!request.program.empty()) return attempt;
  while (std::filesystem::exists(logs / fmt::format("attempt_{}", attempt))) ++attempt;
  return attempt;
}

bool trains(const LaunchRequest& request) { return request.program.empty(); }

/// Does `work`. If the loss of a lock interrupts it, that is thrown.
template <typename Work>
auto naming_a_lost_lock(const Place& place, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) require_locks_as_known(place);
    throw;
  }
}

/// Finds the checkpoint to go on from.
void find_checkpoint(LaunchRequest& request, Place& place) {
  if (!trains(request) || request.loaded.config.training->only_evaluates) return;
  const Beginning beginning = naming_a_lost_lock(place, [&] {
    return find_beginning(request.loaded, {place.world.restarts > 0, request.discards_later});
  });
  config::TrainingConfig& training = *request.loaded.config.training;
  place.is_finished = beginning.is_finished;
  // A run goes on from the newest of its checkpoints, which is whole, or has none.
  std::error_code other;
  const bool is_own = std::filesystem::equivalent(beginning.checkpoint.parent_path(),
                                                  training.output_dir / "checkpoints", other);
  place.begins_after = is_own ? beginning.step : 0;
  place.first_step = beginning.step + 1;
  training.checkpoint.resume_from = beginning.checkpoint;
  training.max_steps = last_step_from(request.loaded, beginning.checkpoint);
}

void claim(LaunchRequest& request, Place& place) {
  const config::Config& config = request.loaded.config;
  if (trains(request)) place.lock = claim_output(request.loaded, place.world.run_id);
  const std::filesystem::path& logs = config.launch.log_dir;
  std::error_code missing;
  const bool is_claimed =
      trains(request) && std::filesystem::equivalent(logs, config.training->output_dir, missing);
  if (!logs.empty() && !is_claimed) place.log_lock = claim_logs(request.loaded, place.world.run_id);
  find_checkpoint(request, place);
}

Place begin_alone(LaunchRequest& request) {
  const config::LaunchConfig& config = request.loaded.config.launch;
  check_main_process_ip(request.loaded);
  Place place;
  place.world = {config.num_processes, config.num_processes, 0, 0, 1, config.main_process_ip, 0,
                 new_run_id()};
  hold_asked_port(request, place);
  choose_port(request, place);
  claim(request, place);
  place.attempt = next_attempt(request);
  return place;
}

/// The samples that all data ranks together take in a step of the optimizer.
std::int64_t samples_of(const config::Config& config) {
  return config.training->data.batch_size * config.training->gradient_accumulation_steps *
         config::mesh_of(config).data_size();
}

/// Resolves the configuration for the machines that take part, if they are not those of the attempt before,
/// and says what that changes.
void fit(const ReducedWorld& reduced, LaunchRequest& request, Place& place) {
  World& world = place.world;
  if (std::pair(reduced.num_processes, reduced.num_machines) ==
      std::pair(world.num_processes, world.num_machines)) {
    // Another machine of the same size may have taken the place of one before this one.
    world.machine_rank = request.loaded.config.launch.machine_rank = reduced.machine_rank;
    return;
  }
  config::LoadedConfig fitted = request.resolve(reduced);
  for (const std::string& warning : fitted.warnings) {
    const std::vector<std::string>& known = request.loaded.warnings;
    if (std::find(known.begin(), known.end(), warning) == known.end()) log::warn(warning);
  }
  std::string change =
      fmt::format("going on with {} of {} machines, of which {} are enough (launch.min_machines)",
                  reduced.num_machines, place.rendezvous.num_machines, place.rendezvous.min_machines);
  if (reduced.num_processes != world.num_processes)
    change += fmt::format(": {} ranks, not {}", reduced.num_processes, world.num_processes);
  if (trains(request) && reduced.num_processes != world.num_processes)
    change += fmt::format("; a step takes {} samples, not {}, {}", samples_of(fitted.config),
                          samples_of(request.loaded.config),
                          fitted.config.training->epochs > 0
                              ? "so that training.epochs and the schedule are of another number of steps"
                              : "at the same learning rate");
  log::warn(change);
  request.loaded = std::move(fitted);
  world.num_processes = reduced.num_processes;
  world.num_machines = reduced.num_machines;
  world.machine_rank = reduced.machine_rank;
}

/// What those that have come are for machine 0.
ReducedWorld reduced_world_of(const Place& place, const Members& members) {
  return {ranks_of(place.rendezvous, members), static_cast<int>(members.size()) + 1, 0,
          place.world.local_ranks};
}

/// What machine 0 does once all members are there: it finds the beginning and tells it.
void begin_with(Members members, LaunchRequest& request, Place& place) {
  try {
    fit(reduced_world_of(place, members), request, place);
    if (place.world.restarts > 0) {
      find_checkpoint(request, place);
    } else {
      place.world.run_id = new_run_id();
      claim(request, place);
      place.attempt = next_attempt(request);
    }
    if (trains(request)) write_run_id(request.loaded.config, place.world.run_id);
    choose_port(request, place);
  } catch (const std::exception& failure) {
    const Error error = error_of(failure);
    refuse(members, error.kind(), error.message());
    throw;
  }
  for (const auto& [machine, member] : members)
    place.rendezvous.ranks_of_machines[machine] = member.local_processes;
  send_welcome(members, place.rendezvous,
               {0, place.world.num_machines, place.world.num_processes, 0, place.world.master_port,
                place.attempt, place.world.restarts, place.world.run_id,
                trains(request) ? request.loaded.config.training->checkpoint.resume_from.string() : "",
                place.is_finished});
  place.cluster = lead(std::move(members), host_name(), place.rendezvous.heartbeats);
}

/// What any other machine does once machine 0 has welcomed it.
void take_part(Membership membership, LaunchRequest& request, Place& place) {
  const Welcome& welcome = membership.welcome;
  const std::string leader = fmt::format("machine 0 ({})", request.loaded.config.launch.main_process_ip);
  place.cluster = follow(std::move(membership.connection), host_name(), leader, place.rendezvous.heartbeats);
  try {
    fit({welcome.num_processes, welcome.num_machines, welcome.machine_rank, place.world.local_ranks}, request,
        place);
  } catch (const Error& error) {
    place.cluster->abandon(error.message());
    throw;
  }
  place.world.first_rank = welcome.first_rank;
  place.world.master_port = welcome.master_port;
  place.world.run_id = welcome.run_id;
  place.world.restarts = welcome.restarts;
  place.attempt = welcome.attempt;
  place.is_finished = welcome.is_finished;
  config::Config& config = request.loaded.config;
  config.launch.main_process_port = welcome.master_port;
  if (!trains(request)) return;
  config.training->checkpoint.resume_from = welcome.resume_from;
  config.training->max_steps = last_step_from(request.loaded, welcome.resume_from);
}

void report_ranks(const Place& place) {
  if (place.is_finished) return;
  const World& world = place.world;
  log::info(fmt::format("machine {} of {}: ranks {} to {} of {}", world.machine_rank, world.num_machines,
                        world.first_rank, world.first_rank + world.local_ranks - 1, world.num_processes));
}

/// Decides what the launchers prove to each other: the secret in the environment, or else the one in the
/// output_dir of a training, which machine 0 makes. A program has no directory that all machines share.
void find_secret(const LaunchRequest& request, const Environment& environment,
                 RendezvousParameters& rendezvous) {
  rendezvous.secret = run_secret_in(environment);
  ::unsetenv(kRunSecretVariable);  // The ranks need no secret, and a program may log its environment.
  if (!rendezvous.secret.empty()) return;
  if (!trains(request)) {
    log::debug(
        fmt::format("{} is not set: the launchers do not authenticate each other", kRunSecretVariable));
    return;
  }
  rendezvous.secret_file = request.loaded.config.training->output_dir / "run_secret";
  if (rendezvous.machine_rank > 0) return;
  blamed_on("training.output_dir", request.loaded.settings, [&] {
    make_directories(rendezvous.secret_file.parent_path());
    rendezvous.secret = make_run_secret(rendezvous.secret_file);
  });
}

Place begin_together(LaunchRequest& request, const Environment& environment) {
  const config::LaunchConfig& config = request.loaded.config.launch;
  Place place;
  place.rendezvous =
      rendezvous_parameters(request.loaded.config, request.program, request.version, host_name());
  place.world = {config.num_processes, config.local_processes, 0, config.machine_rank,
                 config.num_machines,  config.main_process_ip, 0, ""};
  if (config.machine_rank == 0) {
    check_main_process_ip(request.loaded);
    hold_asked_port(request, place);
  }
  find_secret(request, environment, place.rendezvous);
  if (config.machine_rank == 0) {
    begin_with(await_members(place.rendezvous), request, place);
  } else {
    take_part(join(place.rendezvous), request, place);
  }
  report_ranks(place);
  return place;
}

void wait(std::chrono::milliseconds pause) {
  const auto until = std::chrono::steady_clock::now() + pause;
  while (std::chrono::steady_clock::now() < until) {
    check_interrupted();
    std::this_thread::sleep_for(std::min(pause, std::chrono::milliseconds(50)));
  }
}

NextStep next_step(const LaunchRequest& request, const Place& place, int restarts_without_progress,
                   Restarts& restarts) {
  const bool made_progress =
      trains(request) && newest_step(*request.loaded.config.training) > place.begins_after;
  return restarts.after(restarts_without_progress, made_progress, trains(request));
}

void report_restart(const Place& place, std::chrono::milliseconds pause) {
  const std::string when =
      pause.count() == 0 ? "" : fmt::format(", in {:g} s", std::chrono::duration<double>(pause).count());
  log::warn(fmt::format("restart {} of {}{}", place.world.restarts, place.world.max_restarts, when));
}

/// Why those that are left cannot go on without the others; empty if they can.
std::string why_not_without(LaunchRequest& request, Place& place, const Members& members) {
  const ReducedWorld reduced = reduced_world_of(place, members);
  if (reduced.num_machines == place.rendezvous.num_machines) return "";
  try {
    static_cast<void>(request.resolve(reduced));
    return "";
  } catch (const Error& error) {
    return fmt::format("{} of {} machines cannot go on without the others: {}", reduced.num_machines,
                       place.rendezvous.num_machines, error.message());
  }
}

/// The part of another machine than 0 in begin_again(), where machine 0 decides.
std::variant<Place, std::string> follow_again(LaunchRequest& request, Place place) {
  Members leader = place.cluster->release();
  if (leader.empty()) return "";
  auto answer = rejoin(std::move(leader.begin()->second.connection), place.rendezvous);
  if (auto* why_not = std::get_if<std::string>(&answer)) return std::move(*why_not);
  take_part(std::get<Membership>(std::move(answer)), request, place);
  report_restart(place, {});
  report_ranks(place);
  return place;
}

/// The part of machine 0 in begin_again(). Returns why the run is not begun again; nothing if it is.
std::optional<std::string> lead_again(LaunchRequest& request, Place& place, const AttemptEnd& failure,
                                      Restarts& restarts) {
  Members members;
  if (place.cluster != nullptr) members = place.cluster->release();
  const auto or_refuse = [&members, &place](const auto& work) {
    try {
      return naming_a_lost_lock(place, work);
    } catch (const Error& error) {
      refuse(members, error.kind(), fmt::format("{} there", error.message()));
      throw;
    }
  };
  int restarts_without_progress = failure.restarts_without_progress;
  if (may_be_damaged(request, place, failure)) {
    const Damage damage = or_refuse([&] { return check_damage(request, members); });
    if (!damage.text.empty()) log::warn(damage.text);
    // A restart begins with an older checkpoint then.
    if (damage.is_renamed) restarts_without_progress = 1;
  }
  const NextStep next = next_step(request, place, restarts_without_progress, restarts);
  if (!next.is_restart) {
    send_end(members, next.why_not);
    return next.why_not;
  }
  ++place.attempt;
  place.world.restarts = restarts.count();
  report_restart(place, next.pause);
  or_refuse([&] { wait(next.pause); });
  if (place.cluster != nullptr) {
    members =
        naming_a_lost_lock(place, [&] { return await_members_again(place.rendezvous, std::move(members)); });
    if (std::string why_not = why_not_without(request, place, members); !why_not.empty()) {
      send_end(members, why_not);
      return why_not;
    }
    begin_with(std::move(members), request, place);
    report_ranks(place);
  } else {
    find_checkpoint(request, place);
    choose_port(request, place);
  }
  return std::nullopt;
}

}  // namespace

void require_locks_as_known(const Place& place) {
  for (const ckpt::RunLock* lock : {place.lock.get(), place.log_lock.get()}) {
    if (lock != nullptr) lock->require_as_known();
  }
}

Place begin(LaunchRequest& request, const Environment& environment) {
  const config::LaunchConfig& config = request.loaded.config.launch;
  // The secret of other runs may be in the environment. The ranks do not get it.
  if (config.num_machines == 1) ::unsetenv(kRunSecretVariable);
  Place place = config.num_machines == 1 ? begin_alone(request) : begin_together(request, environment);
  place.world.max_restarts = config.max_restarts;
  return place;
}

bool may_be_damaged(const LaunchRequest& request, const Place& place, const AttemptEnd& failure) {
  return place.world.machine_rank == 0 && trains(request) && failure.found_corrupt;
}

Damage check_damage(const LaunchRequest& request, Members& members) {
  return set_damaged_aside(*request.loaded.config.training,
                           [&members](const std::string& text) { send_waiting(members, text); });
}

std::variant<Place, std::string> begin_again(LaunchRequest& request, Place place, const AttemptEnd& failure,
                                             Restarts& restarts) {
  if (place.world.machine_rank > 0) return follow_again(request, std::move(place));
  if (std::optional<std::string> why_not = lead_again(request, place, failure, restarts))
    return *std::move(why_not);
  return place;
}

}  // namespace accel::launch
