#include "core/launch/cluster/admission.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/config/keys/common_settings.hpp"
#include "core/launch/cluster/rendezvous_server.hpp"

namespace accel::launch {
namespace {

Problem same_for_all(std::string text) { return {text, text}; }

Problem problem_of_settings(const RendezvousParameters& own, const RendezvousParameters& theirs,
                            const std::string& who) {
  if (theirs.settings == own.settings) return {};
  const std::string different = config::differences(theirs.settings, own.settings, "on machine 0");
  const std::vector<std::string> names = config::different_names(theirs.settings, own.settings);
  return {fmt::format("{} has another configuration: {}", who, different),
          fmt::format("{} has another configuration than machine 0: {}", who, fmt::join(names, ", "))};
}

/// Compares the arguments of a program, of which there are as many.
Problem problem_of_arguments(const RendezvousParameters& own, const RendezvousParameters& theirs,
                             const std::string& who) {
  const auto [here, there] = std::mismatch(own.argument_hashes.begin(), own.argument_hashes.end(),
                                           theirs.argument_hashes.begin(), theirs.argument_hashes.end());
  if (here == own.argument_hashes.end()) return {};
  return same_for_all(fmt::format("{} has another argument {} of the program than machine 0 ({})", who,
                                  here - own.argument_hashes.begin() + 1, own.host));
}

Problem problem_of_ranks(const RendezvousParameters& own, const Members& members,
                         const RendezvousParameters& theirs, const std::string& who) {
  const auto before = own.ranks_of_machines.find(theirs.machine_rank);
  if (before != own.ranks_of_machines.end() && before->second != theirs.local_processes)
    return same_for_all(
        fmt::format("{} comes back with {} ranks, and had {}", who, theirs.local_processes, before->second));
  const int sum = ranks_of(own, members) + theirs.local_processes;
  const bool completes = static_cast<int>(members.size()) + 2 == own.num_machines;
  if (completes ? sum == own.num_processes : sum < own.num_processes) return {};
  return {fmt::format("{} has {} ranks; with them the machines would have {}, and num_processes is {}", who,
                      theirs.local_processes, sum, own.num_processes),
          fmt::format("{} has {} ranks, which do not fit num_processes", who, theirs.local_processes)};
}

Problem problem_with_values(const RendezvousParameters& own, const Members& members,
                            const RendezvousParameters& theirs, bool is_restart) {
  const int machine = theirs.machine_rank;
  const std::string who = name_of_machine(machine, theirs.host);
  if (theirs.num_machines != own.num_machines)
    return {fmt::format("{} has num_machines: {}, and machine 0 ({}) has {}", who, theirs.num_machines,
                        own.host, own.num_machines),
            fmt::format("{} has num_machines: {}, and machine 0 another number", who, theirs.num_machines)};
  if (machine < 1 || machine >= own.num_machines)
    return same_for_all(fmt::format("{} has machine_rank: {}; the ranks are 0 to {}", theirs.host, machine,
                                    own.num_machines - 1));
  if (const auto there = members.find(machine); there != members.end())
    return same_for_all(
        fmt::format("{} and {} both have machine_rank: {}", there->second.host, theirs.host, machine));
  if (is_restart) {
    if (Problem ranks = problem_of_ranks(own, members, theirs, who)) return ranks;
  }
  if (Problem settings = problem_of_settings(own, theirs, who)) return settings;
  return problem_of_arguments(own, theirs, who);
}

}  // namespace

std::string name_of_machine(int machine, const std::string& host) {
  return fmt::format("machine {} ({})", machine, host);
}

Problem admission_problem(const RendezvousParameters& own, const Members& members,
                          const RendezvousParameters& theirs, bool is_restart) {
  Problem problem = problem_with_values(own, members, theirs, is_restart);
  if (!own.secret.empty()) problem.told = problem.text;
  return problem;
}

}  // namespace accel::launch
