#include "core/launch/cluster/arrival_table.hpp"

#include <fmt/format.h>

#include <iterator>

namespace accel::launch {
namespace {

/// Up to so many machines have a line of their own.
constexpr int kMostOwnLines = 32;
/// The lines of more machines.
constexpr int kMostSharedLines = 32;

std::string line_of(int machine, const Member& member) {
  return fmt::format("\n  machine {}: {} at {}, {} ranks, arrived after {:.1f} s", machine, member.host,
                     member.address, member.local_processes, member.after_s);
}

std::string line_of_neighbours(int first, int last, int ranks) {
  const std::string who =
      first == last ? fmt::format("machine {}", first) : fmt::format("machines {} to {}", first, last);
  if (ranks > 0) return fmt::format("\n  {}: arrived, {} ranks{}", who, ranks, first == last ? "" : " each");
  return fmt::format("\n  {}: {} not arrived", who, first == last ? "has" : "have");
}

/// The ranks of a machine; 0 if it has not arrived.
int ranks_at(const Members& members, int machine) {
  const auto there = members.find(machine);
  return there == members.end() ? 0 : there->second.local_processes;
}

}  // namespace

std::string arrival_table(const RendezvousParameters& own, const Members& members) {
  std::string text = fmt::format("  machine 0: {}, {} ranks, this one", own.host, own.local_processes);
  if (own.num_machines <= kMostOwnLines) {
    for (int machine = 1; machine < own.num_machines; ++machine) {
      const auto there = members.find(machine);
      text +=
          there == members.end() ? line_of_neighbours(machine, machine, 0) : line_of(machine, there->second);
    }
    return text;
  }
  int lines = 0;
  for (int first = 1; first < own.num_machines; ++lines) {
    if (lines == kMostSharedLines) {
      const auto later = static_cast<int>(std::distance(members.lower_bound(first), members.end()));
      return text + fmt::format("\n  machines {} to {}: {} have not arrived", first, own.num_machines - 1,
                                own.num_machines - first - later);
    }
    const int ranks = ranks_at(members, first);
    int last = first;
    while (last + 1 < own.num_machines && ranks_at(members, last + 1) == ranks) ++last;
    text += line_of_neighbours(first, last, ranks);
    first = last + 1;
  }
  return text;
}

}  // namespace accel::launch
