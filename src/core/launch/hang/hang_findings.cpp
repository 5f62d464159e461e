#include "core/launch/hang/hang_findings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "core/launch/hang/hang_events.hpp"

namespace accel::launch {
namespace {

bool is_member(int rank, const FlightGroup& group) {
  if (group.count == 0 || group.stride == 0) return false;
  const int place = (rank - group.first) / group.stride;
  return (rank - group.first) % group.stride == 0 && place >= 0 && place < group.count;
}

/// The first collective of a group that two ranks have called differently; empty if there is none.
std::string first_difference(const std::string& group, const std::vector<RankStatus>& ranks) {
  // Maps the number of a collective to the first rank that has called it, and to what that rank has called.
  std::map<std::uint64_t, std::pair<int, const FlightEvent*>> first;
  std::map<std::uint64_t, std::string> differences;
  for (const RankStatus& status : ranks) {
    for (const FlightEvent& event : status.record.events) {
      if (event.in_group == 0 || event.group.name != group) continue;
      const auto [found, is_first] = first.try_emplace(event.in_group, status.record.rank, &event);
      const auto& [rank, other] = found->second;
      if (is_first || (event.op == other->op && event.bytes == other->bytes && event.unit == other->unit))
        continue;
      differences.try_emplace(event.in_group,
                              fmt::format("rank {} called {}, and rank {} {}", rank, text_of(*other),
                                          status.record.rank, text_of(event)));
    }
  }
  return differences.empty() ? "" : differences.begin()->second;
}

/// "ranks 0, 2-3".
std::string name_of_ranks(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", text_of_ranks(ranks));
}

/// What is to be said of a collective in which ranks wait; empty if none has waited for `least_ns`.
std::string finding_of(const FlightEvent& event, const std::vector<RankStatus>& ranks,
                       std::int64_t least_ns) {
  if (std::string difference = first_difference(event.group.name, ranks); !difference.empty())
    return "the ranks disagree: " + difference;
  std::vector<int> waiting;
  std::vector<int> missing;
  std::int64_t longest_ns = 0;
  for (const RankStatus& status : ranks) {
    const FlightRecord& record = status.record;
    if (!is_member(record.rank, event.group)) continue;
    const FlightEvent* own = find(record, event.group.name, event.in_group);
    if (own == nullptr && newest(record, event.group.name) < event.in_group) {
      missing.push_back(record.rank);
    } else if (own != nullptr && awaited(record) == own) {
      waiting.push_back(record.rank);
      longest_ns = std::max(longest_ns, status.seen_ns - own->waited_ns);
    }
  }
  if (longest_ns < least_ns) return "";
  const std::string who = fmt::format("{} wait{} in {} for {}", name_of_ranks(waiting),
                                      waiting.size() == 1 ? "s" : "", text_of(event), ago(0, longest_ns));
  if (missing.empty()) return fmt::format("all ranks joined, and it does not end: {}", who);
  return fmt::format("{} did not join: {}", name_of_ranks(missing), who);
}

/// The ranks of a group whose records tell how many of its collectives they have begun.
std::vector<const RankStatus*> members_of(const FlightGroup& group, const std::vector<RankStatus>& ranks) {
  std::vector<const RankStatus*> members;
  for (const RankStatus& status : ranks) {
    const FlightRecord& record = status.record;
    const bool is_whole = record.events.empty() || record.events.front().number == 1;
    if (is_member(record.rank, group) && (is_whole || newest(record, group.name) > 0))
      members.push_back(&status);
  }
  return members;
}

/// The first collective of the group behind number `behind` that the rank has enqueued and does not know to
/// have ended; null if there is none.
const FlightEvent* first_enqueued(const RankStatus& status, const std::string& group, std::uint64_t behind) {
  for (const FlightEvent& event : status.record.events) {
    if (event.group.name == group && event.in_group > behind && is_enqueued(event)) return &event;
  }
  return nullptr;
}

/// What is to be said of a collective that a member has enqueued `least_ns` ago or earlier and another has
/// not; empty if there is none.
std::string finding_of_missing(const FlightGroup& group, const std::vector<const RankStatus*>& members,
                               std::int64_t least_ns) {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const RankStatus* status : members) least = std::min(least, newest(status->record, group.name));
  const FlightEvent* first = nullptr;
  for (const RankStatus* status : members) {
    const FlightEvent* event = first_enqueued(*status, group.name, least);
    if (event != nullptr && (first == nullptr || event->in_group < first->in_group)) first = event;
  }
  if (first == nullptr) return "";
  bool is_known = first->in_group == least + 1;
  std::vector<int> missing;
  std::vector<int> enqueued;
  std::int64_t longest_ns = 0;
  for (const RankStatus* status : members) {
    const FlightRecord& record = status->record;
    is_known |= find(record, group.name, first->in_group - 1) != nullptr;
    const FlightEvent* own = find(record, group.name, first->in_group);
    if (newest(record, group.name) < first->in_group) {
      missing.push_back(record.rank);
    } else if (own != nullptr && is_enqueued(*own)) {
      enqueued.push_back(record.rank);
      longest_ns = std::max(longest_ns, status->seen_ns - own->begun_ns);
    }
  }
  if (longest_ns < least_ns) return "";
  return fmt::format("{} did not join: {} enqueued {} {} ago{}", name_of_ranks(missing),
                     name_of_ranks(enqueued), text_of(*first), ago(0, longest_ns),
                     is_known ? "" : ", and before it others that no record has any more");
}

/// What is to be said of the collectives that all members have enqueued, if some of them have waited for
/// their GPUs for `least_ns`; empty if nothing.
std::string finding_of_joined(const FlightGroup& group, const std::vector<const RankStatus*>& members,
                              std::int64_t least_ns) {
  const FlightEvent* first = nullptr;
  bool is_known = false;
  std::vector<int> waiting;
  std::int64_t longest_ns = 0;
  for (const RankStatus* status : members) {
    const FlightEvent* event = first_enqueued(*status, group.name, 0);
    // What has ended on one rank, all have joined and left.
    if (event == nullptr) return "";
    if (first == nullptr || event->in_group > first->in_group) {
      first = event;
      is_known = false;
    }
    if (event->in_group == first->in_group)
      is_known |= first->in_group == 1 || find(status->record, group.name, first->in_group - 1) != nullptr;
    if (const FlightEvent* sync = host_sync(status->record)) {
      waiting.push_back(status->record.rank);
      longest_ns = std::max(longest_ns, status->seen_ns - sync->begun_ns);
    }
  }
  if (waiting.empty() || longest_ns < least_ns) return "";
  return fmt::format(
      "all ranks joined, and the GPUs have not finished: {} {} in a host sync for {}; the first collective "
      "that may be open is {}{}",
      name_of_ranks(waiting), waiting.size() == 1 ? "is" : "are", ago(0, longest_ns), text_of(*first),
      is_known ? "" : ", or an earlier one that no record has any more");
}

/// What is to be said of the collectives that are enqueued, by group.
std::vector<std::string> findings_of_enqueued(const std::vector<RankStatus>& ranks, std::int64_t least_ns) {
  std::map<std::string, FlightGroup> groups;
  for (const RankStatus& status : ranks) {
    for (const FlightEvent& event : status.record.events) {
      if (is_enqueued(event)) groups.try_emplace(event.group.name, event.group);
    }
  }
  std::vector<std::string> missing;
  std::vector<std::string> joined;
  for (const auto& [name, group] : groups) {
    const std::vector<const RankStatus*> members = members_of(group, ranks);
    std::string line = first_difference(name, ranks);
    line = line.empty() ? finding_of_missing(group, members, least_ns) : "the ranks disagree: " + line;
    if (!line.empty()) {
      missing.push_back(std::move(line));
    } else if (line = finding_of_joined(group, members, least_ns); !line.empty()) {
      joined.push_back(std::move(line));
    }
  }
  // A rank that is missing in one group holds up those that wait in the others.
  return missing.empty() ? joined : missing;
}

}  // namespace

std::vector<std::string> findings(const std::vector<RankStatus>& ranks, std::chrono::nanoseconds least) {
  std::vector<std::string> lines;
  for (const RankStatus& status : ranks) {
    if (status.state.starts_with("stopped"))
      lines.push_back(fmt::format("rank {} is stopped, by a signal or a debugger", status.record.rank));
  }
  std::set<std::tuple<std::string, std::uint64_t>> told;
  for (const RankStatus& status : ranks) {
    const FlightEvent* event = awaited(status.record);
    if (event == nullptr || !told.emplace(event->group.name, event->in_group).second) continue;
    std::string line = finding_of(*event, ranks, least.count());
    if (!line.empty() && std::find(lines.begin(), lines.end(), line) == lines.end())
      lines.push_back(std::move(line));
  }
  for (std::string& line : findings_of_enqueued(ranks, least.count())) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
  }
  // Ranks that are missing somewhere come before those that wait because of others.
  std::stable_partition(lines.begin(), lines.end(),
                        [](const std::string& line) { return !line.starts_with("all"); });
  return lines;
}

std::string text_of_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    parts.push_back(j > i ? fmt::format("{}-{}", ranks[i], ranks[j]) : fmt::format("{}", ranks[i]));
    i = j + 1;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace accel::launch
